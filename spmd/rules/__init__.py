"""`ShardingRules`: a model's shardings, in a table apart from it."""

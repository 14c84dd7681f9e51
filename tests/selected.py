"""Tests by name: the longer ones that `make test` runs all the same, and the promises that Shardy
keeps.

A name is that of a test, with or without its parameters, of a class or of a file.
`tests/baseline/check.py` refuses one that no test has.
"""

# The tests of the tree as a whole, of each package what goes from a user's call to a result, and of
# the core what takes a process of its own.
END_TO_END = {
    "tests/golden/test_golden.py",
    "tests/test_floors.py",
    "tests/test_size.py",
    "tests/test_public_api.py",
    "tests/test_tour.py",
    "tests/test_removable.py::test_tour_and_main_job[adaptive jobs names parallel steps tools]",
    "tests/core/base/test_forking.py::TestFork::test_what_a_child_is_told",
    "tests/core/base/test_interrupt.py::TestInterrupt::test_during_a_run",
    "tests/core/base/test_interrupt.py::TestInterrupt::test_during_backward",
    "tests/core/passes/test_scan_layers.py::TestNumbers::test_gpt",
    "tests/core/passes/test_scan_layers.py::TestStacks::test_random",
    "tests/core/programs/test_stored.py::TestProcesses::test_a_training_script[gspmd]",
    "tests/core/run/test_failing.py::test_random_places",
    "tests/core/run/test_start.py::TestEnd::test_first_backward_in_a_thread",
    "tests/core/run/test_start.py::TestLoader::test_two_workers",
    "tests/core/torch_state/test_cpu_programs.py::TestWithAndWithout::test_same_output",
    "tests/properties/test_wrong_calls.py::test_every_callable",
    "tests/fsdp/test_parity.py::TestSameLossesAsPlainTorch::test_fsdp[gpt]",
    "tests/adaptive/test_cutting.py::TestRandomDepth::test_new_combinations_find_programs[mesh]",
    "tests/jobs/checkpoint/test_saving.py::TestPeak::test_peak",
    "tests/strangers/test_files.py::TestStrangers::test_few",
    "tests/loops/test_layers.py::TestTraining::test_rolled",
    "tests/loops/recompute/test_checkpoint.py::TestMemory::test_sharded",
    "tests/steps/exporting/test_export.py::TestFiles::test_without_the_python_that_made_it",
    "tests/steps/replay/test_compiled.py::TestSteps::test_a_wrapped_model[gspmd]",
    (
        "tests/tools/planning/test_plan.py::TestAgainstARun::test_same_bytes_and_"
        "collectives[shape0-rolled]"
    ),
    "tests/tools/suggestions/test_suggest.py::TestSuggest::test_ranking_and_reasons",
    "tests/frameworks/test_trainer.py::TestSharded::test_agrees_and_resumes",
    "tests/models/test_planned.py::TestPlanned::test_as_in_a_run[llama]",
    "tests/models/test_use.py::TestGenerate::test_greedy[gpt2-static-0]",
    "tests/processes/test_processes.py::TestTraining::test_losses",
    "tests/processes/test_processes.py::TestDifferent::test_told[other_program-words0]",
    "tests/recipes/test_compiled.py::test_lazy_and_compiled[gpt]",
    "tests/recipes/test_planned.py::TestTarget::test_main_job",
    "tests/recipes/test_train_gpt.py::TestReport::test_table",
    "tests/docs/test_docs.py::TestPages::test_runs[getting-started.md]",
    "tests/docs/test_docs.py::TestPages::test_runs[guide.md]",
}

# What both partitioners must keep, and the tests that show it under Shardy, besides `tests/spmd`,
# `tests/manual`, `tests/golden` and each class TestSharded.
PROMISES = {
    "placement": [
        "tests/names/dtensor/test_dtensor.py::TestParallelizeModule",
        "tests/names/dtensor/test_dtensor.py::TestFsdp",
        "tests/fsdp/test_fully_shard.py::TestModule::test_the_same_program_as_the_wrappers",
        "tests/fsdp/test_fully_shard.py::TestShardPlacementFn::test_rules",
        (
            "tests/fsdp/test_memory.py::TestEachDeviceHoldsItsShare::test_a_module_from_the_cpu_"
            "is_uploaded_in_shards"
        ),
        "tests/fsdp/test_memory.py::TestBornSharded::test_reset_parameters_of_torch",
        "tests/fsdp/test_reshard.py::TestCollectives",
        (
            "tests/fsdp/test_reshard_within.py::TestReshardAfterForward::test_backward_gathers_"
            "among_neighbours[shardy]"
        ),
    ],
    "gradients": [
        "tests/fsdp/test_fully_shard.py::TestModule::test_gradients",
        "tests/fsdp/test_fully_shard.py::TestModule::test_trains_as_plain_torch",
        "tests/fsdp/test_fully_shard.py::TestMesh::test_two_axes_are_replicas_and_shards",
        "tests/fsdp/test_parity_models.py::TestSameAsPlainTorch::test_training[gpt-2-adamw]",
        "tests/fsdp/test_parity_models.py::TestSameAsPlainTorch::test_training[t5-2-adamw]",
        (
            "tests/fsdp/test_accumulation.py::TestAccumulateGradients::test_training_is_a_plain_"
            "loop_of_parts"
        ),
        "tests/fsdp/test_mixed_precision.py::TestGradients::test_units",
        "tests/fsdp/test_reshard.py::TestNumbers",
        "tests/fsdp/test_mixed_precision.py::TestTensorParallel",
        "tests/fsdp/test_reduce_dtype.py::TestReduceDtype",
        "tests/fsdp/test_wrapped_model.py::TestTiedWeights",
        "tests/fsdp/test_reshard.py::TestHowUnitsAreUsed::test_frozen",
    ],
    "uneven": [
        "tests/fsdp/test_fully_shard.py::TestShardPlacementFn::test_an_uneven_dim_is_padded",
        (
            "tests/fsdp/test_reshard_within.py::TestReshardAfterForward::test_uneven_dims_and_a_"
            "barrier_between"
        ),
    ],
    "checkpoint": [
        "tests/jobs/checkpoint/test_distributed_checkpoint.py::TestLayouts",
        "tests/fsdp/test_state_dict.py::TestForms::test_sharded",
        "tests/fsdp/test_state_dict.py::TestResume",
        "tests/fsdp/test_state_dict.py::TestOtherMeshes",
        "tests/fsdp/test_reshard.py::TestHowUnitsAreUsed::test_each_unit_checkpointed",
    ],
    "memory": [
        "tests/fsdp/test_reshard.py::TestMemory::test_a_stack_of_linear_layers",
        "tests/fsdp/test_memory.py::TestBornSharded::test_the_numbers_do_not_depend_on_the_mesh",
        "tests/fsdp/test_parity.py::TestCompilesCounted",
        "tests/tools/explain/test_no_recompile.py::TestRaises::test_several_meshes",
    ],
    "passes": [
        "tests/core/passes/test_scan_layers.py::TestNumbers::test_gpt",
        "tests/core/passes/test_scan_layers.py::TestByItself",
        "tests/core/passes/test_scan_layers.py::TestJoined::test_numbers[cat of columns]",
        "tests/core/passes/test_peeled.py",
        "tests/tools/explain/test_unrolled_loops.py::TestTaggers::test_values",
        "tests/loops/recompute/test_checkpoint.py::TestRolled",
        "tests/core/programs/test_stores.py",
        "tests/core/programs/test_store_programs.py",
        "tests/core/run/test_execute.py::TestUnmarkedState",
        (
            "tests/adaptive/test_cutting.py::TestRandomDepth::test_a_graph_that_runs_often_"
            "becomes_one_program"
        ),
        "tests/core/record/test_computed_weights.py::TestMoves",
        "tests/core/test_properties.py::TestRandomPrograms",
    ],
    "rules": [
        "tests/ops/test_matmul.py",
        "tests/ops/test_folds.py",
        "tests/ops/test_norm.py",
        "tests/ops/test_loss.py::TestCrossEntropy",
        "tests/ops/test_attention.py::TestAttention::test_against_cpu",
    ],
}


def names(item_id: str) -> list[str]:
    """The names under which a table may hold a test: itself, without parameters, its class, its
    file."""
    file, *parts = item_id.partition("[")[0].split("::")
    return [item_id, *("::".join([file, *parts[:count]]) for count in range(len(parts), -1, -1))]


PROMISED = {name: promise for promise, held in PROMISES.items() for name in held}

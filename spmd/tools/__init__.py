"""Tools that look at programs: plans, suggestions, checks, profiles, pictures, HLO in words, why a
step recompiled."""

"""Tests by name: those that run in `make test-all` alone, and those of `tests/spmd` and `tests/fsdp` that Shardy runs.

A name is that of a test, with or without its parameters, of a class or of a file. `tests/baseline/check.py` refuses one
that no test has. A test may as well carry the marker itself: `@pytest.mark.long`, `@pytest.mark.partitioned("uneven")`.
"""

# By file and test, the cheaper ones of `make test` that fail with it.
_LONG = {
    "tests/core/programs/test_stored.py": {
        "TestProcesses::test_rolled_layers": "TestSecondStart::test_stores; test_scan_layers",
        "TestProcesses::test_a_training_script[shardy]": "the same test under GSPMD",
        "TestProcesses::test_forked_before_the_device_starts": "test_forking",
    },
    "tests/core/graph/test_op.py": {
        "TestDigest::test_in_every_process": "test_stored: a second process finds programs by digest",
    },
    "tests/core/torch_state/test_device_module.py": {
        "TestGenericCode::test_checkpoint_imported_first": "test_checkpoint",
    },
    "tests/core/base/test_other_jax.py": {
        "TestWithoutTheCudnnKernel": "tests/core/ops/test_attention.py::TestGPU",
        "TestWithoutGspmd::test_gspmd_is_refused": "test_shardy_is_the_default",
    },
    "tests/core/ops/test_backward_rules.py": {
        "TestBenchmark": "the rules' own tests in the same file",
    },
    "tests/core/base/test_forking.py": {
        "TestFork::test_loaders_beside_a_busy_device": "test_start.py::TestLoader",
        "TestFork::test_a_child_of_a_process_without_devices": "test_what_a_child_is_told",
        "TestSpawn": "core/torch_state/test_saving.py: values travel as on the CPU",
    },
    "tests/core/base/test_interrupt.py": {
        "test_keyboard_interrupt_from_an_alarm_during_compiles": "TestSignals::test_an_alarm",
        "TestInterrupt::test_during_a_sleep": "test_during_a_run",
        "TestInterrupt::test_during_a_loop": "test_during_a_run",
        "TestInterrupt::test_while_gradients_are_recorded": "test_during_backward",
        "TestInterrupt::test_a_handler_that_sends_another_signal": "TestSignals",
        "TestInterrupt::test_where_python_drops_what_is_raised[collector]": "[weak reference]",
        "TestInterrupt::test_where_python_drops_what_is_raised[finalizer]": "[weak reference]",
    },
    "tests/core/run/test_start.py": {
        "TestEnd::test_first_backward": "test_first_backward_in_a_thread",
        "TestDevices::test_sixty_four": "TestPoolWidth::test_threads[-70-environment4]",
        "TestPoolWidth::test_threads[0-environment1]": "[0-environment3]",
        "TestPoolWidth::test_threads[0-environment2]": "[0-environment3]",
        "TestPoolWidth::test_threads[-70-environment5]": "[-70-environment4]",
        "TestEnd::test_every_way_backward_in_a_new_thread": "test_first_backward_in_a_thread",
    },
    "tests/processes/test_processes.py": {
        "TestDifferent::test_failing": "TestDifferent::test_told[other_program-words0]",
        "TestUse::test_reads": "test_losses",
        "TestDifferent::test_alone": "TestDifferent::test_told[other_program-words0]",
        "TestTraining::test_stores": "test_losses; tests/core/programs/test_stores.py",
        "TestTraining::test_rolled": "test_losses; tests/core/passes/test_scan_layers.py",
        "TestTraining::test_torchrun": "test_losses; TestPlace::test_torch",
        "TestKeywords": "test_losses; tests/fsdp on eight devices of one process",
        "TestSee": "TestUse; tests/tools/show/test_inspect.py",
        "TestDifferent::test_told[other_number-words1]": "[other_program]",
        "TestDifferent::test_told[other_seed-words2]": "[other_program]",
        "TestDifferent::test_told[other_shape-words3]": "[other_program]",
        "TestDifferent::test_told[one_more_run-words4]": "TestDifferent::test_failing",
        "TestDifferent::test_killed": "TestDifferent::test_failing",
    },
    "tests/models/test_models.py": {
        "TestTrainingStepAgreesWithCPU::test_batch_over_eight_devices[unet]": "[resnet18]; test_use.py",
        "TestTrainingStepAgreesWithCPU::test_unsharded[unet]": "the same model on 8 devices",
        "TestTrainingStepAgreesWithCPU::test_unsharded[clip]": "the same model on 8 devices",
        "TestTrainingStepAgreesWithCPU::test_unsharded[whisper]": "the same model on 8 devices",
        "TestTrainingStepAgreesWithCPU::test_unsharded[resnet18]": "the same model on 8 devices",
        "TestTrainingStepAgreesWithCPU::test_unsharded[vit]": "the same model on 8 devices",
        "TestTrainingStepAgreesWithCPU::test_unsharded[mixtral]": "the same model on 8 devices",
        "TestTrainingStepAgreesWithCPU::test_unsharded[bert]": "the same model on 8 devices",
        "TestTrainingStepAgreesWithCPU::test_unsharded[llama]": "the same model on 8 devices",
        "TestTrainingStepAgreesWithCPU::test_unsharded[t5]": "the same model on 8 devices",
        "TestTrainingStepAgreesWithCPU::test_unsharded[mistral]": "the same model on 8 devices",
        "TestTrainingStepAgreesWithCPU::test_batch_over_eight_devices[mistral]": "[llama]",
        "TestTrainingStepAgreesWithCPU::test_batch_over_eight_devices[bert]": "[gpt2], [vit]",
        "TestTrainingStepAgreesWithCPU::test_batch_over_eight_devices[clip]": "[vit], [t5]",
    },
    "tests/models/test_use.py": {
        "TestGenerate::test_greedy[llama-dynamic-0]": "[llama-dynamic-2]",
        "TestGenerate::test_greedy[llama-static-2]": "[gpt2-static-0]",
        "TestGenerate::test_greedy[gpt2-dynamic-2]": "[llama-dynamic-2]",
        "TestGenerate::test_sharded[llama-dynamic]": "test_sharded[llama-static]",
        "TestGenerate::test_sharded[gpt2-dynamic]": "test_sharded[llama-static]",
        "TestGenerate::test_beams": "tests/adaptive/padding/test_lengths.py; test_greedy",
        "TestGenerate::test_sampling": "tests/core/base/test_seed.py; test_greedy",
        "TestDiffusionPipeline::test_latents[DPMSolverMultistep]": "[DDIM]",
        "TestLoRA::test_over_a_frozen_sharded_model": "test_on_a_sharded_batch; test_reshard: frozen",
    },
    "tests/core/ops/test_attention.py": {
        "TestGPU::test_kernel_is_partitioned": "TestGPU::test_kernel; TestSharded",
        "TestSharded::test_batch_in_blocks": "TestSharded::test_batch; test_blocks",
        "TestAttention::test_blocks[dtype1]": "[dtype0]; test_against_cpu of each dtype",
        "TestAttention::test_blocks[dtype2]": "[dtype0]; test_against_cpu of each dtype",
        "TestAttention::test_blocks[dtype3]": "[dtype0]; test_against_cpu of each dtype",
    },
    "tests/loops/recompute/test_checkpoint.py": {
        "TestMemory::test_attention_and_dropout[reentrant-never]": "test_perceptron",
        "TestMemory::test_attention_and_dropout[reentrant-auto]": "test_perceptron",
    },
    "tests/loops/test_layers.py": {
        "TestStacks::test_the_program_is_as_long_for_any_number_of_layers[never]": "[auto]",
    },
    "tests/fsdp/test_thousand_steps.py": {
        "TestPrograms::test_read_after_the_step": "TestMemory::test_flat[end]; explain/test_no_recompile.py",
        "TestMemory::test_flat[middle]": "[end]",
        "TestPrograms::test_read_in_the_middle": "test_read_after_the_step",
    },
    "tests/fsdp/test_parity.py": {
        "TestSameLossesAsPlainTorch::test_fsdp[llama-eager]": "[llama-sdpa]",
        "TestSameLossesAsPlainTorch::test_data_parallel[llama-eager]": "[gpt]",
        "TestSameLossesAsPlainTorch::test_data_parallel[llama-sdpa]": "[gpt]",
        "TestSameLossesAsPlainTorch::test_data_and_fsdp[llama-eager]": "[llama-sdpa]",
        "TestSameLossesAsPlainTorch::test_data_and_fsdp[gpt]": "[llama-sdpa]; test_fsdp[gpt]",
    },
    "tests/fsdp/test_loading.py": {
        "TestPeak::test_peak[model.pt]": "[model.safetensors]",
    },
    "tests/tools/planning/test_plan.py": {
        "TestAgainstARun::test_many_thin_layers": "test_same_bytes_and_collectives",
    },
    "tests/spmd/test_mark_sharding.py": {
        "TestComplexConstants::test_are_summed[shardy]": "[gspmd]",
    },
    "tests/recipes/test_bf16.py": {
        "": "tests/fsdp/test_mixed_precision.py; test_precision",
    },
    "tests/recipes/test_jax_gpt.py": {
        "test_same_weights_give_torchs_losses[8-shardy]": "[8-gspmd]",
        "test_same_weights_give_torchs_losses[1-shardy]": "[1-gspmd]: on one device it says nothing",
    },
    "tests/recipes/test_llama.py": {
        "TestLlama::test_training_step[shape0-shardy]": "[shape2-shardy]",
        "TestLlama::test_training_step[shape1-gspmd]": "[shape2-gspmd]",
        "TestLlama::test_training_step[shape1-shardy]": "[shape2-shardy]",
    },
    "tests/recipes/test_scale.py": {
        "test_a_toy_beside_jax_by_hand[True-shardy]": "[True-gspmd]",
        "test_a_toy_beside_jax_by_hand[False-gspmd]": "[True-gspmd]",
        "test_a_toy_beside_jax_by_hand[False-shardy]": "[True-gspmd]",
    },
    "tests/recipes/test_train_gpt.py": {
        "TestMesh": "fsdp/test_memory.py: test_the_numbers_do_not_depend_on_the_mesh; test_parity",
    },
    "tests/recipes/test_train_llama.py": {
        "TestReport::test_units": "test_llama.py; test_train_gpt.py::TestReport::test_table",
        "TestResume::test_other_mesh": "fsdp/test_state_dict.py::TestOtherMeshes",
        "TestTarget::test_planned": "test_planned.py::TestTarget::test_main_job",
        "TestTarget::test_chips": "tests/tools/planning/test_plan_of_chips.py",
    },
    "tests/recipes/test_train_resnet.py": {
        "TestReport::test_digits": "TestLayouts; test_train_gpt.py::TestReport::test_table",
        "TestLayouts::test_same[fsdp-shardy]": "[spatial-shardy]; tests/fsdp under Shardy",
        "TestLayouts::test_same[spatial-gspmd]": "[spatial-shardy]",
        "TestReport::test_planned_at_the_shapes_of_imagenet": "test_planned.py",
        "TestLayouts::test_same[data-shardy]": "[spatial-shardy]",
        "TestLayouts::test_same[data-gspmd]": "[fsdp-gspmd]",
    },
    "tests/recipes/test_wrap_hugging_face.py": {
        "TestModels::test_trained_saved_and_loaded[gpt2]": "[llama]",
        "TestTarget": "test_planned.py::TestTarget::test_main_job",
    },
    "tests/recipes/test_planned.py": {
        "TestTarget::test_a_wrong_one_is_one_sentence": "tests/spmd/test_topology.py::TestMesh::test_unknown",
        "TestTarget::test_memory": "tests/tools/planning/test_plan_of_chips.py; test_main_job",
        "TestTarget::test_step": "test_main_job",
    },
    "tests/models/test_planned.py": {
        "TestPlanned::test_over_two_hosts[gpt2]": "[llama]",
        "TestPlanned::test_over_two_hosts[mistral]": "[llama]",
        "TestPlanned::test_over_two_hosts[mixtral]": "test_as_in_a_run[mixtral]",
        "TestPlanned::test_over_two_hosts[bert]": "[t5]",
        "TestPlanned::test_over_two_hosts[vit]": "[t5]",
        "TestPlanned::test_over_two_hosts[clip]": "[t5]",
        "TestPlanned::test_over_two_hosts[whisper]": "[t5]",
        "TestPlanned::test_over_two_hosts[unet]": "[resnet18]",
        "TestPlanned::test_as_in_a_run[gpt2]": "[llama]",
        "TestPlanned::test_as_in_a_run[whisper]": "[t5]",
        "TestPlanned::test_as_in_a_run[unet]": "[resnet18]; tests/tools/planning/test_plan.py",
        "TestPlanned::test_as_in_a_run[clip]": "[vit], [t5]",
        "TestPlanned::test_as_in_a_run[mistral]": "[llama]",
        "TestPlanned::test_as_in_a_run[bert]": "[gpt2], [vit]",
    },
    "tests/core/sharding/test_partitioner.py": {
        "TestNotice::test_log[1-False]": "[0-True]",
    },
    "tests/spmd/test_topology.py": {
        "TestMesh::test_unknown[cpu]": "[abacus:2x2]",
        "TestMesh::test_unknown[cpu:none]": "[abacus:2x2]",
    },
    "tests/test_import.py": {
        "TestOtherOwners::test_installed_or_imported[torch_tpu]": "[torch_xla]",
    },
    "tests/core/passes/test_scan_layers.py": {
        "TestJoined::test_numbers[cat]": "[cat of columns], [stack from behind]",
        "TestJoined::test_numbers[stack]": "[cat of columns], [stack from behind]",
        "TestJoined::test_numbers[stack behind]": "[cat of columns], [stack from behind]",
    },
    "tests/core/ops/test_rnn.py": {
        "TestSecondGradients::test_against_cpu[padded-rnn]": "[padded-relu]",
        "TestSecondGradients::test_against_cpu[padded-lstm]": "[packed-lstm]",
        "TestSecondGradients::test_against_cpu[padded-projection]": "[packed-projection]",
        "TestSecondGradients::test_against_cpu[packed-rnn]": "[padded-relu]",
        "TestSecondGradients::test_against_cpu[packed-relu]": "[padded-relu]",
        "TestSecondGradients::test_against_cpu[packed-gru]": "[padded-gru]",
    },
    "tests/core/passes/test_long.py": {
        "TestWithoutLoop::test_two_processes_cut_alike": "test_cutting.py: the same test",
    },
    "tests/core/programs/test_recompile.py": {
        "TestBound::test_memory_maps": "the rest of TestBound; a group of core holds more programs than there are maps",
    },
    "tests/fsdp/test_parity_models.py": {
        "TestSameAsPlainTorch::test_training[gpt-1-sgd]": "[gpt-2-*], [gpt-8-*], [gpt-2x4-*]",
        "TestSameAsPlainTorch::test_training[gpt-4-sgd]": "[gpt-2-*], [gpt-8-*], [gpt-2x4-*]",
        "TestSameAsPlainTorch::test_training[llama-1-adamw]": "[llama-2-*], [llama-8-*], [llama-2x4-*]",
        "TestSameAsPlainTorch::test_training[llama-4-adamw]": "[llama-2-*], [llama-8-*], [llama-2x4-*]",
        "TestSameAsPlainTorch::test_training[t5-1-sgd]": "[t5-2-*], [t5-8-*], [t5-2x4-*]",
        "TestSameAsPlainTorch::test_training[t5-4-sgd]": "[t5-2-*], [t5-8-*], [t5-2x4-*]",
        "TestSameAsPlainTorch::test_training[mixtral-1-sgd]": "[mixtral-2-*], [mixtral-8-*], [mixtral-2x4-*]",
        "TestSameAsPlainTorch::test_training[mixtral-4-sgd]": "[mixtral-2-*], [mixtral-8-*], [mixtral-2x4-*]",
        "TestSameAsPlainTorch::test_training[resnet-1-adamw]": "[resnet-2-*], [resnet-8-*], [resnet-2x4-*]",
        "TestSameAsPlainTorch::test_training[resnet-4-adamw]": "[resnet-2-*], [resnet-8-*], [resnet-2x4-*]",
    },
    "tests/core/run/test_syncs.py": {
        "TestProgramsAtOnce": "tests/core/run/test_start.py::TestNoHang::test_all_end",
    },
    "tests/core/ops/test_resample.py": {
        "TestGridSampling::test_plane[False]": "[True]",
    },
    "tests/processes/test_checkpoints.py": {
        "TestCheckpoints::test_saved_by_two_loaded_by_one": "tests/fsdp/test_state_dict.py::TestOtherMeshes",
    },
    "tests/core/ops/test_folds.py": {
        "TestAttention::test_transformer[first-tensor]": "[second-tensor]",
        "TestAttention::test_transformer[second-fsdp]": "[first-fsdp]",
    },
}  # fmt: skip
LONG = {
    "::".join(filter(None, (file, test))): covers for file, tests in _LONG.items() for test, covers in tests.items()
}

# Sweeps that stand beside the tests of what they try, instead of in `tests/sweep`.
SWEPT = {
    "tests/core/ops/test_backward_rules.py::TestCost::test_no_more_than_jax_vjp",
    "tests/core/test_properties.py::TestRandomPrograms::test_random",
    "tests/core/aten/test_fused.py::TestDerivatives::test_as_torch",
    "tests/core/aten/test_masks.py::TestIndexing::test_like_cpu",
    "tests/core/ops/test_linear_cross_entropy.py::TestNumbers::test_against_cpu",
}

# What both partitioners must keep, and the tests that show it under Shardy.
PROMISES = {
    "placement": [
        "tests/spmd/test_mark_sharding.py",
        "tests/spmd/test_shards.py::TestPieces",
        "tests/spmd/test_stablehlo.py::TestText",
        "tests/spmd/test_stablehlo.py::TestBeforeCompilation",
        "tests/spmd/test_unconstrained.py",
        "tests/spmd/test_sharding_forms.py::TestText",
        "tests/spmd/test_annotate.py::TestAlike",
        "tests/spmd/test_annotate.py::TestCustom",
        "tests/spmd/test_meshes.py",
        "tests/spmd/test_rules.py::TestWithFsdp",
        "tests/names/dtensor/test_dtensor.py::TestParallelizeModule",
        "tests/names/dtensor/test_dtensor.py::TestFsdp",
        "tests/fsdp/test_fully_shard.py::TestModule::test_the_same_program_as_the_wrappers",
        "tests/fsdp/test_fully_shard.py::TestShardPlacementFn::test_rules",
        "tests/fsdp/test_memory.py::TestEachDeviceHoldsItsShare::test_a_module_from_the_cpu_is_uploaded_in_shards",
        "tests/fsdp/test_memory.py::TestBornSharded::test_reset_parameters_of_torch",
        "tests/fsdp/test_reshard.py::TestCollectives",
        "tests/fsdp/test_reshard_within.py::TestReshardAfterForward::test_backward_gathers_among_neighbours[shardy]",
    ],
    "resharding": [
        "tests/spmd/test_reshard.py",
        "tests/spmd/test_three_ways.py",
        "tests/spmd/test_shards_in.py::TestInverse",
    ],
    "gradients": [
        "tests/spmd/test_annotate.py::TestGradient",
        "tests/spmd/test_annotate.py::TestWithGradients",
        "tests/spmd/test_memory.py::TestPlace::test_gradients_move",
        "tests/fsdp/test_fully_shard.py::TestModule::test_gradients",
        "tests/fsdp/test_fully_shard.py::TestModule::test_trains_as_plain_torch",
        "tests/fsdp/test_fully_shard.py::TestMesh::test_two_axes_are_replicas_and_shards",
        "tests/fsdp/test_parity_models.py::TestSameAsPlainTorch::test_training[gpt-2-adamw]",
        "tests/fsdp/test_parity_models.py::TestSameAsPlainTorch::test_training[t5-2-adamw]",
        "tests/fsdp/test_accumulation.py::TestAccumulateGradients::test_training_is_a_plain_loop_of_parts",
        "tests/fsdp/test_mixed_precision.py::TestGradients::test_units",
        "tests/fsdp/test_reshard.py::TestNumbers",
        "tests/fsdp/test_mixed_precision.py::TestTensorParallel",
        "tests/fsdp/test_reduce_dtype.py::TestReduceDtype",
        "tests/fsdp/test_wrapped_model.py::TestTiedWeights",
        "tests/fsdp/test_reshard.py::TestHowUnitsAreUsed::test_frozen",
    ],
    "uneven": [
        "tests/spmd/test_uneven.py",
        "tests/fsdp/test_fully_shard.py::TestShardPlacementFn::test_an_uneven_dim_is_padded",
        "tests/fsdp/test_reshard_within.py::TestReshardAfterForward::test_uneven_dims_and_a_barrier_between",
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
        "tests/spmd/test_memory.py::TestOptimizer::test_all_state_is_updated_in_place",
        "tests/spmd/test_memory.py::TestPlace",
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
        "tests/adaptive/test_cutting.py::TestRandomDepth::test_a_graph_that_runs_often_becomes_one_program",
        "tests/core/record/test_computed_weights.py::TestMoves",
        "tests/core/test_properties.py::TestRandomPrograms",
    ],
    "rules": [
        "tests/core/ops/test_matmul.py",
        "tests/core/ops/test_folds.py",
        "tests/core/ops/test_norm.py",
        "tests/core/ops/test_loss.py::TestCrossEntropy",
        "tests/core/ops/test_attention.py::TestAttention::test_against_cpu",
    ],
    "shards": [
        "tests/manual/test_shard_map.py",
        "tests/manual/test_manual_sharding.py",
    ],
}


def names(item_id: str) -> list[str]:
    """The names under which a table may hold a test: itself, without parameters, its class, its file."""
    file, *parts = item_id.partition("[")[0].split("::")
    return [item_id, *("::".join([file, *parts[:count]]) for count in range(len(parts), -1, -1))]


PROMISED = {name: promise for promise, held in PROMISES.items() for name in held}

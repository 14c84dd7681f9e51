// torch 2.13.0, jax 0.10.2, transformers 5.23.0
module @jit_spmd attributes {mhlo.num_partitions = 8 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["fsdp"=8]> {stablehlo.mesh = {axes = [{name = "fsdp", size = 8 : i64}]}}
  func.func public @main(%arg0: tensor<32x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}, {}]>, tf.aliasing_output = 1 : i32},
    %arg1: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"fsdp"}]>, tf.aliasing_output = 2 : i32},
    %arg2: tensor<16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}]>, tf.aliasing_output = 3 : i32},
    %arg3: tensor<16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}]>, tf.aliasing_output = 4 : i32},
    %arg4: tensor<32x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}, {}]>, tf.aliasing_output = 17 : i32},
    %arg5: tensor<8x8xi64> {sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}, {}]>},
    %arg6: tensor<16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}]>, tf.aliasing_output = 8 : i32},
    %arg7: tensor<16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}]>, tf.aliasing_output = 9 : i32},
    %arg8: tensor<48x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}, {}]>, tf.aliasing_output = 5 : i32},
    %arg9: tensor<48xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}]>, tf.aliasing_output = 6 : i32},
    %arg10: tensor<16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}, {}]>, tf.aliasing_output = 7 : i32},
    %arg11: tensor<16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}]>, tf.aliasing_output = 10 : i32},
    %arg12: tensor<16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}]>, tf.aliasing_output = 14 : i32},
    %arg13: tensor<16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}]>, tf.aliasing_output = 15 : i32},
    %arg14: tensor<64x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}, {}]>, tf.aliasing_output = 11 : i32},
    %arg15: tensor<64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}]>, tf.aliasing_output = 12 : i32},
    %arg16: tensor<16x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"fsdp"}]>, tf.aliasing_output = 13 : i32},
    %arg17: tensor<16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}]>, tf.aliasing_output = 16 : i32},
    %arg18: tensor<8x8xi64> {sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}, {}]>},
    %arg19: tensor<32x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}, {}]>, tf.aliasing_output = 18 : i32},
    %arg20: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"fsdp"}]>, tf.aliasing_output = 19 : i32},
    %arg21: tensor<16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}]>, tf.aliasing_output = 20 : i32},
    %arg22: tensor<16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}]>, tf.aliasing_output = 21 : i32},
    %arg23: tensor<48x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}, {}]>, tf.aliasing_output = 22 : i32},
    %arg24: tensor<48xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}]>, tf.aliasing_output = 23 : i32},
    %arg25: tensor<16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}, {}]>, tf.aliasing_output = 24 : i32},
    %arg26: tensor<16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}]>, tf.aliasing_output = 25 : i32},
    %arg27: tensor<16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}]>, tf.aliasing_output = 26 : i32},
    %arg28: tensor<16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}]>, tf.aliasing_output = 27 : i32},
    %arg29: tensor<64x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}, {}]>, tf.aliasing_output = 28 : i32},
    %arg30: tensor<64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}]>, tf.aliasing_output = 29 : i32},
    %arg31: tensor<16x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"fsdp"}]>, tf.aliasing_output = 30 : i32},
    %arg32: tensor<16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}]>, tf.aliasing_output = 31 : i32},
    %arg33: tensor<16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}]>, tf.aliasing_output = 32 : i32},
    %arg34: tensor<16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}]>, tf.aliasing_output = 33 : i32},
    %arg35: tensor<32x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}, {}]>, tf.aliasing_output = 34 : i32},
    %arg36: tensor<32x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}, {}]>, tf.aliasing_output = 35 : i32},
    %arg37: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"fsdp"}]>, tf.aliasing_output = 36 : i32},
    %arg38: tensor<16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}]>, tf.aliasing_output = 37 : i32},
    %arg39: tensor<16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}]>, tf.aliasing_output = 38 : i32},
    %arg40: tensor<48x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}, {}]>, tf.aliasing_output = 39 : i32},
    %arg41: tensor<48xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}]>, tf.aliasing_output = 40 : i32},
    %arg42: tensor<16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}, {}]>, tf.aliasing_output = 41 : i32},
    %arg43: tensor<16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}]>, tf.aliasing_output = 42 : i32},
    %arg44: tensor<16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}]>, tf.aliasing_output = 43 : i32},
    %arg45: tensor<16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}]>, tf.aliasing_output = 44 : i32},
    %arg46: tensor<64x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}, {}]>, tf.aliasing_output = 45 : i32},
    %arg47: tensor<64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}]>, tf.aliasing_output = 46 : i32},
    %arg48: tensor<16x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"fsdp"}]>, tf.aliasing_output = 47 : i32},
    %arg49: tensor<16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}]>, tf.aliasing_output = 48 : i32},
    %arg50: tensor<16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}]>, tf.aliasing_output = 49 : i32},
    %arg51: tensor<16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}]>, tf.aliasing_output = 50 : i32},
    %arg52: tensor<32x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}, {}]>, tf.aliasing_output = 51 : i32},
    %arg53: tensor<10xf64>,
    %arg54: tensor<2xi64>) -> (
    tensor<f32> {jax.result_info = "result[0]"},
    tensor<32x16xf32> {jax.result_info = "result[1]", sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}, {}]>},
    tensor<8x16xf32> {jax.result_info = "result[2]", sdy.sharding = #sdy.sharding<@mesh, [{}, {"fsdp"}]>},
    tensor<16xf32> {jax.result_info = "result[3]", sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}]>},
    tensor<16xf32> {jax.result_info = "result[4]", sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}]>},
    tensor<48x16xf32> {jax.result_info = "result[5]", sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}, {}]>},
    tensor<48xf32> {jax.result_info = "result[6]", sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}]>},
    tensor<16x16xf32> {jax.result_info = "result[7]", sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}, {}]>},
    tensor<16xf32> {jax.result_info = "result[8]", sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}]>},
    tensor<16xf32> {jax.result_info = "result[9]", sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}]>},
    tensor<16xf32> {jax.result_info = "result[10]", sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}]>},
    tensor<64x16xf32> {jax.result_info = "result[11]", sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}, {}]>},
    tensor<64xf32> {jax.result_info = "result[12]", sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}]>},
    tensor<16x64xf32> {jax.result_info = "result[13]", sdy.sharding = #sdy.sharding<@mesh, [{}, {"fsdp"}]>},
    tensor<16xf32> {jax.result_info = "result[14]", sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}]>},
    tensor<16xf32> {jax.result_info = "result[15]", sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}]>},
    tensor<16xf32> {jax.result_info = "result[16]", sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}]>},
    tensor<32x16xf32> {jax.result_info = "result[17]", sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}, {}]>},
    tensor<32x16xf32> {jax.result_info = "result[18]", sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}, {}]>},
    tensor<8x16xf32> {jax.result_info = "result[19]", sdy.sharding = #sdy.sharding<@mesh, [{}, {"fsdp"}]>},
    tensor<16xf32> {jax.result_info = "result[20]", sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}]>},
    tensor<16xf32> {jax.result_info = "result[21]", sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}]>},
    tensor<48x16xf32> {jax.result_info = "result[22]", sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}, {}]>},
    tensor<48xf32> {jax.result_info = "result[23]", sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}]>},
    tensor<16x16xf32> {jax.result_info = "result[24]", sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}, {}]>},
    tensor<16xf32> {jax.result_info = "result[25]", sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}]>},
    tensor<16xf32> {jax.result_info = "result[26]", sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}]>},
    tensor<16xf32> {jax.result_info = "result[27]", sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}]>},
    tensor<64x16xf32> {jax.result_info = "result[28]", sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}, {}]>},
    tensor<64xf32> {jax.result_info = "result[29]", sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}]>},
    tensor<16x64xf32> {jax.result_info = "result[30]", sdy.sharding = #sdy.sharding<@mesh, [{}, {"fsdp"}]>},
    tensor<16xf32> {jax.result_info = "result[31]", sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}]>},
    tensor<16xf32> {jax.result_info = "result[32]", sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}]>},
    tensor<16xf32> {jax.result_info = "result[33]", sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}]>},
    tensor<32x16xf32> {jax.result_info = "result[34]", sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}, {}]>},
    tensor<32x16xf32> {jax.result_info = "result[35]", sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}, {}]>},
    tensor<8x16xf32> {jax.result_info = "result[36]", sdy.sharding = #sdy.sharding<@mesh, [{}, {"fsdp"}]>},
    tensor<16xf32> {jax.result_info = "result[37]", sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}]>},
    tensor<16xf32> {jax.result_info = "result[38]", sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}]>},
    tensor<48x16xf32> {jax.result_info = "result[39]", sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}, {}]>},
    tensor<48xf32> {jax.result_info = "result[40]", sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}]>},
    tensor<16x16xf32> {jax.result_info = "result[41]", sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}, {}]>},
    tensor<16xf32> {jax.result_info = "result[42]", sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}]>},
    tensor<16xf32> {jax.result_info = "result[43]", sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}]>},
    tensor<16xf32> {jax.result_info = "result[44]", sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}]>},
    tensor<64x16xf32> {jax.result_info = "result[45]", sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}, {}]>},
    tensor<64xf32> {jax.result_info = "result[46]", sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}]>},
    tensor<16x64xf32> {jax.result_info = "result[47]", sdy.sharding = #sdy.sharding<@mesh, [{}, {"fsdp"}]>},
    tensor<16xf32> {jax.result_info = "result[48]", sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}]>},
    tensor<16xf32> {jax.result_info = "result[49]", sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}]>},
    tensor<16xf32> {jax.result_info = "result[50]", sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}]>},
    tensor<32x16xf32> {jax.result_info = "result[51]", sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}, {}]>}) {
    %0 = stablehlo.iota dim = 0 : tensor<8xi64>
    %c = stablehlo.constant dense<1> : tensor<i64>
    %1 = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<i64>) -> tensor<8xi64>
    %2 = stablehlo.multiply %0, %1 : tensor<8xi64>
    %c_0 = stablehlo.constant dense<0> : tensor<i64>
    %3 = stablehlo.broadcast_in_dim %c_0, dims = [] : (tensor<i64>) -> tensor<8xi64>
    %4 = stablehlo.add %3, %2 : tensor<8xi64>
    %5 = stablehlo.reshape %arg0 : (tensor<32x16xf32>) -> tensor<8x4x16xf32>
    %6 = stablehlo.reshape %5 : (tensor<8x4x16xf32>) -> tensor<8x64xf32>
    %7 = sdy.sharding_constraint %6 <@mesh, [{"fsdp"}, {}]> : tensor<8x64xf32>
    %8 = stablehlo.transpose %arg1, dims = [1, 0] : (tensor<8x16xf32>) -> tensor<16x8xf32>
    %9 = stablehlo.reshape %8 : (tensor<16x8xf32>) -> tensor<8x2x8xf32>
    %10 = stablehlo.reshape %9 : (tensor<8x2x8xf32>) -> tensor<8x16xf32>
    %11 = sdy.sharding_constraint %10 <@mesh, [{"fsdp"}, {}]> : tensor<8x16xf32>
    %12 = stablehlo.reshape %arg2 : (tensor<16xf32>) -> tensor<16x1xf32>
    %13 = stablehlo.reshape %12 : (tensor<16x1xf32>) -> tensor<8x2x1xf32>
    %14 = stablehlo.reshape %13 : (tensor<8x2x1xf32>) -> tensor<8x2xf32>
    %15 = sdy.sharding_constraint %14 <@mesh, [{"fsdp"}, {}]> : tensor<8x2xf32>
    %16 = stablehlo.reshape %arg3 : (tensor<16xf32>) -> tensor<16x1xf32>
    %17 = stablehlo.reshape %16 : (tensor<16x1xf32>) -> tensor<8x2x1xf32>
    %18 = stablehlo.reshape %17 : (tensor<8x2x1xf32>) -> tensor<8x2xf32>
    %19 = sdy.sharding_constraint %18 <@mesh, [{"fsdp"}, {}]> : tensor<8x2xf32>
    %20 = stablehlo.reshape %arg4 : (tensor<32x16xf32>) -> tensor<8x4x16xf32>
    %21 = stablehlo.reshape %20 : (tensor<8x4x16xf32>) -> tensor<8x64xf32>
    %22 = sdy.sharding_constraint %21 <@mesh, [{"fsdp"}, {}]> : tensor<8x64xf32>
    %23 = stablehlo.concatenate %7, %11, %15, %19, %22, dim = 1 : (tensor<8x64xf32>, tensor<8x16xf32>, tensor<8x2xf32>, tensor<8x2xf32>, tensor<8x64xf32>) -> tensor<8x148xf32>
    %24 = sdy.sharding_constraint %23 <@mesh, [{"fsdp"}, {}]> : tensor<8x148xf32>
    %25 = sdy.sharding_constraint %24 <@mesh, [{}, {}]> : tensor<8x148xf32>
    %26 = stablehlo.slice %25 [0:8, 0:64] : (tensor<8x148xf32>) -> tensor<8x64xf32>
    %27 = stablehlo.reshape %26 : (tensor<8x64xf32>) -> tensor<32x16xf32>
    %28 = stablehlo.slice %25 [0:8, 64:80] : (tensor<8x148xf32>) -> tensor<8x16xf32>
    %29 = stablehlo.reshape %28 : (tensor<8x16xf32>) -> tensor<16x8xf32>
    %30 = stablehlo.transpose %29, dims = [1, 0] : (tensor<16x8xf32>) -> tensor<8x16xf32>
    %31 = stablehlo.slice %25 [0:8, 80:82] : (tensor<8x148xf32>) -> tensor<8x2xf32>
    %32 = stablehlo.reshape %31 : (tensor<8x2xf32>) -> tensor<16xf32>
    %33 = stablehlo.slice %25 [0:8, 82:84] : (tensor<8x148xf32>) -> tensor<8x2xf32>
    %34 = stablehlo.reshape %33 : (tensor<8x2xf32>) -> tensor<16xf32>
    %35 = stablehlo.slice %25 [0:8, 84:148] : (tensor<8x148xf32>) -> tensor<8x64xf32>
    %36 = stablehlo.reshape %35 : (tensor<8x64xf32>) -> tensor<32x16xf32>
    %37 = stablehlo.convert %arg5 : (tensor<8x8xi64>) -> tensor<8x8xi32>
    %38 = stablehlo.broadcast_in_dim %37, dims = [0, 1] : (tensor<8x8xi32>) -> tensor<8x8x1xi32>
    %c_1 = stablehlo.constant dense<31> : tensor<1xi32>
    %c_2 = stablehlo.constant dense<0> : tensor<i32>
    %39 = stablehlo.broadcast_in_dim %c_2, dims = [] : (tensor<i32>) -> tensor<8x8x1xi32>
    %40 = stablehlo.compare GE, %38, %39, SIGNED : (tensor<8x8x1xi32>, tensor<8x8x1xi32>) -> tensor<8x8x1xi1>
    %41 = stablehlo.broadcast_in_dim %c_1, dims = [2] : (tensor<1xi32>) -> tensor<1x1x1xi32>
    %42 = stablehlo.broadcast_in_dim %41, dims = [0, 1, 2] : (tensor<1x1x1xi32>) -> tensor<8x8x1xi32>
    %43 = stablehlo.compare LE, %38, %42, SIGNED : (tensor<8x8x1xi32>, tensor<8x8x1xi32>) -> tensor<8x8x1xi1>
    %44 = stablehlo.and %40, %43 : tensor<8x8x1xi1>
    %c_3 = stablehlo.constant dense<true> : tensor<i1>
    %45 = stablehlo.reduce(%44 init: %c_3) applies stablehlo.and across dimensions = [2] : (tensor<8x8x1xi1>, tensor<i1>) -> tensor<8x8xi1>
    %46 = "stablehlo.gather"(%27, %38) <{dimension_numbers = #stablehlo.gather<offset_dims = [2], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 2>, indices_are_sorted = false, slice_sizes = array<i64: 1, 16>}> : (tensor<32x16xf32>, tensor<8x8x1xi32>) -> tensor<8x8x16xf32>
    %47 = stablehlo.broadcast_in_dim %45, dims = [0, 1] : (tensor<8x8xi1>) -> tensor<8x8x16xi1>
    %cst = stablehlo.constant dense<0x7FC00000> : tensor<f32>
    %48 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<8x8x16xf32>
    %49 = stablehlo.select %47, %46, %48 : tensor<8x8x16xi1>, tensor<8x8x16xf32>
    %50 = stablehlo.convert %4 : (tensor<8xi64>) -> tensor<8xi32>
    %51 = stablehlo.broadcast_in_dim %50, dims = [0] : (tensor<8xi32>) -> tensor<8x1xi32>
    %c_4 = stablehlo.constant dense<7> : tensor<1xi32>
    %c_5 = stablehlo.constant dense<0> : tensor<i32>
    %52 = stablehlo.broadcast_in_dim %c_5, dims = [] : (tensor<i32>) -> tensor<8x1xi32>
    %53 = stablehlo.compare GE, %51, %52, SIGNED : (tensor<8x1xi32>, tensor<8x1xi32>) -> tensor<8x1xi1>
    %54 = stablehlo.broadcast_in_dim %c_4, dims = [1] : (tensor<1xi32>) -> tensor<1x1xi32>
    %55 = stablehlo.broadcast_in_dim %54, dims = [0, 1] : (tensor<1x1xi32>) -> tensor<8x1xi32>
    %56 = stablehlo.compare LE, %51, %55, SIGNED : (tensor<8x1xi32>, tensor<8x1xi32>) -> tensor<8x1xi1>
    %57 = stablehlo.and %53, %56 : tensor<8x1xi1>
    %c_6 = stablehlo.constant dense<true> : tensor<i1>
    %58 = stablehlo.reduce(%57 init: %c_6) applies stablehlo.and across dimensions = [1] : (tensor<8x1xi1>, tensor<i1>) -> tensor<8xi1>
    %59 = "stablehlo.gather"(%30, %51) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1, 16>}> : (tensor<8x16xf32>, tensor<8x1xi32>) -> tensor<8x16xf32>
    %60 = stablehlo.broadcast_in_dim %58, dims = [0] : (tensor<8xi1>) -> tensor<8x16xi1>
    %cst_7 = stablehlo.constant dense<0x7FC00000> : tensor<f32>
    %61 = stablehlo.broadcast_in_dim %cst_7, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %62 = stablehlo.select %60, %59, %61 : tensor<8x16xi1>, tensor<8x16xf32>
    %63 = stablehlo.broadcast_in_dim %62, dims = [1, 2] : (tensor<8x16xf32>) -> tensor<1x8x16xf32>
    %64 = stablehlo.broadcast_in_dim %63, dims = [0, 1, 2] : (tensor<1x8x16xf32>) -> tensor<8x8x16xf32>
    %65 = stablehlo.add %49, %64 : tensor<8x8x16xf32>
    %66:13 = stablehlo.optimization_barrier %arg6, %arg7, %arg8, %arg9, %arg10, %arg11, %arg12, %arg13, %arg14, %arg15, %arg16, %arg17, %65 : tensor<16xf32>, tensor<16xf32>, tensor<48x16xf32>, tensor<48xf32>, tensor<16x16xf32>, tensor<16xf32>, tensor<16xf32>, tensor<16xf32>, tensor<64x16xf32>, tensor<64xf32>, tensor<16x64xf32>, tensor<16xf32>, tensor<8x8x16xf32>
    %67 = sdy.sharding_constraint %66#0 <@mesh, [{"fsdp"}]> : tensor<16xf32>
    %68 = sdy.sharding_constraint %66#1 <@mesh, [{"fsdp"}]> : tensor<16xf32>
    %69 = sdy.sharding_constraint %66#2 <@mesh, [{"fsdp"}, {}]> : tensor<48x16xf32>
    %70 = sdy.sharding_constraint %66#3 <@mesh, [{"fsdp"}]> : tensor<48xf32>
    %71 = sdy.sharding_constraint %66#4 <@mesh, [{"fsdp"}, {}]> : tensor<16x16xf32>
    %72 = sdy.sharding_constraint %66#5 <@mesh, [{"fsdp"}]> : tensor<16xf32>
    %73 = sdy.sharding_constraint %66#6 <@mesh, [{"fsdp"}]> : tensor<16xf32>
    %74 = sdy.sharding_constraint %66#7 <@mesh, [{"fsdp"}]> : tensor<16xf32>
    %75 = sdy.sharding_constraint %66#8 <@mesh, [{"fsdp"}, {}]> : tensor<64x16xf32>
    %76 = sdy.sharding_constraint %66#9 <@mesh, [{"fsdp"}]> : tensor<64xf32>
    %77 = sdy.sharding_constraint %66#10 <@mesh, [{}, {"fsdp"}]> : tensor<16x64xf32>
    %78 = sdy.sharding_constraint %66#11 <@mesh, [{"fsdp"}]> : tensor<16xf32>
    %79 = stablehlo.reshape %67 : (tensor<16xf32>) -> tensor<16x1xf32>
    %80 = stablehlo.reshape %79 : (tensor<16x1xf32>) -> tensor<8x2x1xf32>
    %81 = stablehlo.reshape %80 : (tensor<8x2x1xf32>) -> tensor<8x2xf32>
    %82 = sdy.sharding_constraint %81 <@mesh, [{"fsdp"}, {}]> : tensor<8x2xf32>
    %83 = stablehlo.reshape %68 : (tensor<16xf32>) -> tensor<16x1xf32>
    %84 = stablehlo.reshape %83 : (tensor<16x1xf32>) -> tensor<8x2x1xf32>
    %85 = stablehlo.reshape %84 : (tensor<8x2x1xf32>) -> tensor<8x2xf32>
    %86 = sdy.sharding_constraint %85 <@mesh, [{"fsdp"}, {}]> : tensor<8x2xf32>
    %87 = stablehlo.reshape %69 : (tensor<48x16xf32>) -> tensor<8x6x16xf32>
    %88 = stablehlo.reshape %87 : (tensor<8x6x16xf32>) -> tensor<8x96xf32>
    %89 = sdy.sharding_constraint %88 <@mesh, [{"fsdp"}, {}]> : tensor<8x96xf32>
    %90 = stablehlo.reshape %70 : (tensor<48xf32>) -> tensor<48x1xf32>
    %91 = stablehlo.reshape %90 : (tensor<48x1xf32>) -> tensor<8x6x1xf32>
    %92 = stablehlo.reshape %91 : (tensor<8x6x1xf32>) -> tensor<8x6xf32>
    %93 = sdy.sharding_constraint %92 <@mesh, [{"fsdp"}, {}]> : tensor<8x6xf32>
    %94 = stablehlo.reshape %71 : (tensor<16x16xf32>) -> tensor<8x2x16xf32>
    %95 = stablehlo.reshape %94 : (tensor<8x2x16xf32>) -> tensor<8x32xf32>
    %96 = sdy.sharding_constraint %95 <@mesh, [{"fsdp"}, {}]> : tensor<8x32xf32>
    %97 = stablehlo.reshape %72 : (tensor<16xf32>) -> tensor<16x1xf32>
    %98 = stablehlo.reshape %97 : (tensor<16x1xf32>) -> tensor<8x2x1xf32>
    %99 = stablehlo.reshape %98 : (tensor<8x2x1xf32>) -> tensor<8x2xf32>
    %100 = sdy.sharding_constraint %99 <@mesh, [{"fsdp"}, {}]> : tensor<8x2xf32>
    %101 = stablehlo.reshape %73 : (tensor<16xf32>) -> tensor<16x1xf32>
    %102 = stablehlo.reshape %101 : (tensor<16x1xf32>) -> tensor<8x2x1xf32>
    %103 = stablehlo.reshape %102 : (tensor<8x2x1xf32>) -> tensor<8x2xf32>
    %104 = sdy.sharding_constraint %103 <@mesh, [{"fsdp"}, {}]> : tensor<8x2xf32>
    %105 = stablehlo.reshape %74 : (tensor<16xf32>) -> tensor<16x1xf32>
    %106 = stablehlo.reshape %105 : (tensor<16x1xf32>) -> tensor<8x2x1xf32>
    %107 = stablehlo.reshape %106 : (tensor<8x2x1xf32>) -> tensor<8x2xf32>
    %108 = sdy.sharding_constraint %107 <@mesh, [{"fsdp"}, {}]> : tensor<8x2xf32>
    %109 = stablehlo.reshape %75 : (tensor<64x16xf32>) -> tensor<8x8x16xf32>
    %110 = stablehlo.reshape %109 : (tensor<8x8x16xf32>) -> tensor<8x128xf32>
    %111 = sdy.sharding_constraint %110 <@mesh, [{"fsdp"}, {}]> : tensor<8x128xf32>
    %112 = stablehlo.reshape %76 : (tensor<64xf32>) -> tensor<64x1xf32>
    %113 = stablehlo.reshape %112 : (tensor<64x1xf32>) -> tensor<8x8x1xf32>
    %114 = stablehlo.reshape %113 : (tensor<8x8x1xf32>) -> tensor<8x8xf32>
    %115 = sdy.sharding_constraint %114 <@mesh, [{"fsdp"}, {}]> : tensor<8x8xf32>
    %116 = stablehlo.transpose %77, dims = [1, 0] : (tensor<16x64xf32>) -> tensor<64x16xf32>
    %117 = stablehlo.reshape %116 : (tensor<64x16xf32>) -> tensor<8x8x16xf32>
    %118 = stablehlo.reshape %117 : (tensor<8x8x16xf32>) -> tensor<8x128xf32>
    %119 = sdy.sharding_constraint %118 <@mesh, [{"fsdp"}, {}]> : tensor<8x128xf32>
    %120 = stablehlo.reshape %78 : (tensor<16xf32>) -> tensor<16x1xf32>
    %121 = stablehlo.reshape %120 : (tensor<16x1xf32>) -> tensor<8x2x1xf32>
    %122 = stablehlo.reshape %121 : (tensor<8x2x1xf32>) -> tensor<8x2xf32>
    %123 = sdy.sharding_constraint %122 <@mesh, [{"fsdp"}, {}]> : tensor<8x2xf32>
    %124 = stablehlo.concatenate %82, %86, %89, %93, %96, %100, %104, %108, %111, %115, %119, %123, dim = 1 : (tensor<8x2xf32>, tensor<8x2xf32>, tensor<8x96xf32>, tensor<8x6xf32>, tensor<8x32xf32>, tensor<8x2xf32>, tensor<8x2xf32>, tensor<8x2xf32>, tensor<8x128xf32>, tensor<8x8xf32>, tensor<8x128xf32>, tensor<8x2xf32>) -> tensor<8x410xf32>
    %125 = sdy.sharding_constraint %124 <@mesh, [{"fsdp"}, {}]> : tensor<8x410xf32>
    %126 = sdy.sharding_constraint %125 <@mesh, [{}, {}]> : tensor<8x410xf32>
    %127 = stablehlo.slice %126 [0:8, 0:2] : (tensor<8x410xf32>) -> tensor<8x2xf32>
    %128 = stablehlo.reshape %127 : (tensor<8x2xf32>) -> tensor<16xf32>
    %129 = stablehlo.slice %126 [0:8, 2:4] : (tensor<8x410xf32>) -> tensor<8x2xf32>
    %130 = stablehlo.reshape %129 : (tensor<8x2xf32>) -> tensor<16xf32>
    %131 = stablehlo.slice %126 [0:8, 4:100] : (tensor<8x410xf32>) -> tensor<8x96xf32>
    %132 = stablehlo.reshape %131 : (tensor<8x96xf32>) -> tensor<48x16xf32>
    %133 = stablehlo.slice %126 [0:8, 100:106] : (tensor<8x410xf32>) -> tensor<8x6xf32>
    %134 = stablehlo.reshape %133 : (tensor<8x6xf32>) -> tensor<48xf32>
    %135 = stablehlo.slice %126 [0:8, 106:138] : (tensor<8x410xf32>) -> tensor<8x32xf32>
    %136 = stablehlo.reshape %135 : (tensor<8x32xf32>) -> tensor<16x16xf32>
    %137 = stablehlo.slice %126 [0:8, 138:140] : (tensor<8x410xf32>) -> tensor<8x2xf32>
    %138 = stablehlo.reshape %137 : (tensor<8x2xf32>) -> tensor<16xf32>
    %139 = stablehlo.slice %126 [0:8, 140:142] : (tensor<8x410xf32>) -> tensor<8x2xf32>
    %140 = stablehlo.reshape %139 : (tensor<8x2xf32>) -> tensor<16xf32>
    %141 = stablehlo.slice %126 [0:8, 142:144] : (tensor<8x410xf32>) -> tensor<8x2xf32>
    %142 = stablehlo.reshape %141 : (tensor<8x2xf32>) -> tensor<16xf32>
    %143 = stablehlo.slice %126 [0:8, 144:272] : (tensor<8x410xf32>) -> tensor<8x128xf32>
    %144 = stablehlo.reshape %143 : (tensor<8x128xf32>) -> tensor<64x16xf32>
    %145 = stablehlo.slice %126 [0:8, 272:280] : (tensor<8x410xf32>) -> tensor<8x8xf32>
    %146 = stablehlo.reshape %145 : (tensor<8x8xf32>) -> tensor<64xf32>
    %147 = stablehlo.slice %126 [0:8, 280:408] : (tensor<8x410xf32>) -> tensor<8x128xf32>
    %148 = stablehlo.reshape %147 : (tensor<8x128xf32>) -> tensor<64x16xf32>
    %149 = stablehlo.transpose %148, dims = [1, 0] : (tensor<64x16xf32>) -> tensor<16x64xf32>
    %150 = stablehlo.slice %126 [0:8, 408:410] : (tensor<8x410xf32>) -> tensor<8x2xf32>
    %151 = stablehlo.reshape %150 : (tensor<8x2xf32>) -> tensor<16xf32>
    %cst_8 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %152 = stablehlo.reduce(%66#12 init: %cst_8) applies stablehlo.add across dimensions = [2] : (tensor<8x8x16xf32>, tensor<f32>) -> tensor<8x8xf32>
    %153 = stablehlo.broadcast_in_dim %152, dims = [0, 1] : (tensor<8x8xf32>) -> tensor<8x8x1xf32>
    %cst_9 = stablehlo.constant dense<1.600000e+01> : tensor<f32>
    %154 = stablehlo.broadcast_in_dim %cst_9, dims = [] : (tensor<f32>) -> tensor<8x8x1xf32>
    %155 = stablehlo.divide %153, %154 : tensor<8x8x1xf32>
    %156 = stablehlo.broadcast_in_dim %155, dims = [0, 1, 2] : (tensor<8x8x1xf32>) -> tensor<8x8x16xf32>
    %157 = stablehlo.subtract %66#12, %156 : tensor<8x8x16xf32>
    %158 = stablehlo.multiply %157, %157 : tensor<8x8x16xf32>
    %cst_10 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %159 = stablehlo.reduce(%158 init: %cst_10) applies stablehlo.add across dimensions = [2] : (tensor<8x8x16xf32>, tensor<f32>) -> tensor<8x8xf32>
    %160 = stablehlo.broadcast_in_dim %159, dims = [0, 1] : (tensor<8x8xf32>) -> tensor<8x8x1xf32>
    %cst_11 = stablehlo.constant dense<1.600000e+01> : tensor<f32>
    %161 = stablehlo.broadcast_in_dim %cst_11, dims = [] : (tensor<f32>) -> tensor<8x8x1xf32>
    %162 = stablehlo.divide %160, %161 : tensor<8x8x1xf32>
    %cst_12 = stablehlo.constant dense<9.99999974E-6> : tensor<f32>
    %163 = stablehlo.broadcast_in_dim %cst_12, dims = [] : (tensor<f32>) -> tensor<8x8x1xf32>
    %164 = stablehlo.add %162, %163 : tensor<8x8x1xf32>
    %165 = stablehlo.rsqrt %164 : tensor<8x8x1xf32>
    %166 = stablehlo.broadcast_in_dim %165, dims = [0, 1, 2] : (tensor<8x8x1xf32>) -> tensor<8x8x16xf32>
    %167 = stablehlo.multiply %157, %166 : tensor<8x8x16xf32>
    %168 = stablehlo.broadcast_in_dim %128, dims = [2] : (tensor<16xf32>) -> tensor<1x1x16xf32>
    %169 = stablehlo.broadcast_in_dim %168, dims = [0, 1, 2] : (tensor<1x1x16xf32>) -> tensor<8x8x16xf32>
    %170 = stablehlo.multiply %167, %169 : tensor<8x8x16xf32>
    %171 = stablehlo.broadcast_in_dim %130, dims = [2] : (tensor<16xf32>) -> tensor<1x1x16xf32>
    %172 = stablehlo.broadcast_in_dim %171, dims = [0, 1, 2] : (tensor<1x1x16xf32>) -> tensor<8x8x16xf32>
    %173 = stablehlo.add %170, %172 : tensor<8x8x16xf32>
    %174 = call @atleast_2d(%132) : (tensor<48x16xf32>) -> tensor<48x16xf32>
    %175 = stablehlo.transpose %174, dims = [1, 0] : (tensor<48x16xf32>) -> tensor<16x48xf32>
    %176 = stablehlo.dot_general %173, %175, contracting_dims = [2] x [0], precision = [HIGHEST, HIGHEST] : (tensor<8x8x16xf32>, tensor<16x48xf32>) -> tensor<8x8x48xf32>
    %177 = stablehlo.broadcast_in_dim %134, dims = [2] : (tensor<48xf32>) -> tensor<1x1x48xf32>
    %178 = stablehlo.broadcast_in_dim %177, dims = [0, 1, 2] : (tensor<1x1x48xf32>) -> tensor<8x8x48xf32>
    %179 = stablehlo.add %178, %176 : tensor<8x8x48xf32>
    %180 = stablehlo.reshape %179 : (tensor<8x8x48xf32>) -> tensor<8x8x3x2x8xf32>
    %181 = stablehlo.slice %180 [0:8, 0:8, 0:1, 0:2, 0:8] : (tensor<8x8x3x2x8xf32>) -> tensor<8x8x1x2x8xf32>
    %182 = stablehlo.reshape %181 : (tensor<8x8x1x2x8xf32>) -> tensor<8x8x2x8xf32>
    %183 = stablehlo.transpose %182, dims = [0, 2, 1, 3] : (tensor<8x8x2x8xf32>) -> tensor<8x2x8x8xf32>
    %184 = stablehlo.slice %180 [0:8, 0:8, 1:2, 0:2, 0:8] : (tensor<8x8x3x2x8xf32>) -> tensor<8x8x1x2x8xf32>
    %185 = stablehlo.reshape %184 : (tensor<8x8x1x2x8xf32>) -> tensor<8x8x2x8xf32>
    %186 = stablehlo.transpose %185, dims = [0, 2, 1, 3] : (tensor<8x8x2x8xf32>) -> tensor<8x2x8x8xf32>
    %187 = stablehlo.slice %180 [0:8, 0:8, 2:3, 0:2, 0:8] : (tensor<8x8x3x2x8xf32>) -> tensor<8x8x1x2x8xf32>
    %188 = stablehlo.reshape %187 : (tensor<8x8x1x2x8xf32>) -> tensor<8x8x2x8xf32>
    %189 = stablehlo.transpose %188, dims = [0, 2, 1, 3] : (tensor<8x8x2x8xf32>) -> tensor<8x2x8x8xf32>
    %190 = stablehlo.slice %arg54 [0:1] : (tensor<2xi64>) -> tensor<1xi64>
    %191 = stablehlo.reshape %190 : (tensor<1xi64>) -> tensor<i64>
    %192 = stablehlo.slice %arg54 [1:2] : (tensor<2xi64>) -> tensor<1xi64>
    %193 = stablehlo.reshape %192 : (tensor<1xi64>) -> tensor<i64>
    %194 = stablehlo.dot_general %183, %186, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [3], precision = [HIGHEST, HIGHEST] : (tensor<8x2x8x8xf32>, tensor<8x2x8x8xf32>) -> tensor<8x2x8x8xf32>
    %cst_13 = stablehlo.constant dense<0.353553385> : tensor<f32>
    %195 = stablehlo.broadcast_in_dim %cst_13, dims = [] : (tensor<f32>) -> tensor<8x2x8x8xf32>
    %196 = stablehlo.multiply %194, %195 : tensor<8x2x8x8xf32>
    %197 = stablehlo.iota dim = 0 : tensor<8x8xi32>
    %198 = stablehlo.iota dim = 1 : tensor<8x8xi32>
    %199 = stablehlo.compare LE, %198, %197, SIGNED : (tensor<8x8xi32>, tensor<8x8xi32>) -> tensor<8x8xi1>
    %cst_14 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %200 = call @_where(%199, %196, %cst_14) : (tensor<8x8xi1>, tensor<8x2x8x8xf32>, tensor<f32>) -> tensor<8x2x8x8xf32>
    %cst_15 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %201 = stablehlo.reduce(%200 init: %cst_15) applies stablehlo.maximum across dimensions = [3] : (tensor<8x2x8x8xf32>, tensor<f32>) -> tensor<8x2x8xf32>
    %202 = stablehlo.broadcast_in_dim %201, dims = [0, 1, 2] : (tensor<8x2x8xf32>) -> tensor<8x2x8x1xf32>
    %203 = stablehlo.broadcast_in_dim %202, dims = [0, 1, 2, 3] : (tensor<8x2x8x1xf32>) -> tensor<8x2x8x8xf32>
    %204 = stablehlo.subtract %200, %203 : tensor<8x2x8x8xf32>
    %205 = stablehlo.exponential %204 : tensor<8x2x8x8xf32>
    %cst_16 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %206 = stablehlo.reduce(%205 init: %cst_16) applies stablehlo.add across dimensions = [3] : (tensor<8x2x8x8xf32>, tensor<f32>) -> tensor<8x2x8xf32>
    %207 = stablehlo.broadcast_in_dim %206, dims = [0, 1, 2] : (tensor<8x2x8xf32>) -> tensor<8x2x8x1xf32>
    %208 = stablehlo.log %207 : tensor<8x2x8x1xf32>
    %209 = stablehlo.add %202, %208 : tensor<8x2x8x1xf32>
    %210 = stablehlo.reshape %209 : (tensor<8x2x8x1xf32>) -> tensor<8x2x8xf32>
    %211 = stablehlo.broadcast_in_dim %207, dims = [0, 1, 2, 3] : (tensor<8x2x8x1xf32>) -> tensor<8x2x8x8xf32>
    %212 = stablehlo.divide %205, %211 : tensor<8x2x8x8xf32>
    %213 = stablehlo.dot_general %212, %189, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [2], precision = [HIGHEST, HIGHEST] : (tensor<8x2x8x8xf32>, tensor<8x2x8x8xf32>) -> tensor<8x2x8x8xf32>
    %214 = stablehlo.broadcast_in_dim %191, dims = [] : (tensor<i64>) -> tensor<1xi64>
    %215 = stablehlo.broadcast_in_dim %193, dims = [] : (tensor<i64>) -> tensor<1xi64>
    %216 = stablehlo.concatenate %214, %215, dim = 0 : (tensor<1xi64>, tensor<1xi64>) -> tensor<2xi64>
    %217 = stablehlo.transpose %213, dims = [0, 2, 1, 3] : (tensor<8x2x8x8xf32>) -> tensor<8x8x2x8xf32>
    %218 = stablehlo.reshape %217 : (tensor<8x8x2x8xf32>) -> tensor<8x8x16xf32>
    %219 = call @atleast_2d_0(%136) : (tensor<16x16xf32>) -> tensor<16x16xf32>
    %220 = stablehlo.transpose %219, dims = [1, 0] : (tensor<16x16xf32>) -> tensor<16x16xf32>
    %221 = stablehlo.dot_general %218, %220, contracting_dims = [2] x [0], precision = [HIGHEST, HIGHEST] : (tensor<8x8x16xf32>, tensor<16x16xf32>) -> tensor<8x8x16xf32>
    %222 = stablehlo.broadcast_in_dim %138, dims = [2] : (tensor<16xf32>) -> tensor<1x1x16xf32>
    %223 = stablehlo.broadcast_in_dim %222, dims = [0, 1, 2] : (tensor<1x1x16xf32>) -> tensor<8x8x16xf32>
    %224 = stablehlo.add %223, %221 : tensor<8x8x16xf32>
    %225 = stablehlo.add %66#12, %224 : tensor<8x8x16xf32>
    %cst_17 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %226 = stablehlo.reduce(%225 init: %cst_17) applies stablehlo.add across dimensions = [2] : (tensor<8x8x16xf32>, tensor<f32>) -> tensor<8x8xf32>
    %227 = stablehlo.broadcast_in_dim %226, dims = [0, 1] : (tensor<8x8xf32>) -> tensor<8x8x1xf32>
    %cst_18 = stablehlo.constant dense<1.600000e+01> : tensor<f32>
    %228 = stablehlo.broadcast_in_dim %cst_18, dims = [] : (tensor<f32>) -> tensor<8x8x1xf32>
    %229 = stablehlo.divide %227, %228 : tensor<8x8x1xf32>
    %230 = stablehlo.broadcast_in_dim %229, dims = [0, 1, 2] : (tensor<8x8x1xf32>) -> tensor<8x8x16xf32>
    %231 = stablehlo.subtract %225, %230 : tensor<8x8x16xf32>
    %232 = stablehlo.multiply %231, %231 : tensor<8x8x16xf32>
    %cst_19 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %233 = stablehlo.reduce(%232 init: %cst_19) applies stablehlo.add across dimensions = [2] : (tensor<8x8x16xf32>, tensor<f32>) -> tensor<8x8xf32>
    %234 = stablehlo.broadcast_in_dim %233, dims = [0, 1] : (tensor<8x8xf32>) -> tensor<8x8x1xf32>
    %cst_20 = stablehlo.constant dense<1.600000e+01> : tensor<f32>
    %235 = stablehlo.broadcast_in_dim %cst_20, dims = [] : (tensor<f32>) -> tensor<8x8x1xf32>
    %236 = stablehlo.divide %234, %235 : tensor<8x8x1xf32>
    %cst_21 = stablehlo.constant dense<9.99999974E-6> : tensor<f32>
    %237 = stablehlo.broadcast_in_dim %cst_21, dims = [] : (tensor<f32>) -> tensor<8x8x1xf32>
    %238 = stablehlo.add %236, %237 : tensor<8x8x1xf32>
    %239 = stablehlo.rsqrt %238 : tensor<8x8x1xf32>
    %240 = stablehlo.broadcast_in_dim %239, dims = [0, 1, 2] : (tensor<8x8x1xf32>) -> tensor<8x8x16xf32>
    %241 = stablehlo.multiply %231, %240 : tensor<8x8x16xf32>
    %242 = stablehlo.broadcast_in_dim %140, dims = [2] : (tensor<16xf32>) -> tensor<1x1x16xf32>
    %243 = stablehlo.broadcast_in_dim %242, dims = [0, 1, 2] : (tensor<1x1x16xf32>) -> tensor<8x8x16xf32>
    %244 = stablehlo.multiply %241, %243 : tensor<8x8x16xf32>
    %245 = stablehlo.broadcast_in_dim %142, dims = [2] : (tensor<16xf32>) -> tensor<1x1x16xf32>
    %246 = stablehlo.broadcast_in_dim %245, dims = [0, 1, 2] : (tensor<1x1x16xf32>) -> tensor<8x8x16xf32>
    %247 = stablehlo.add %244, %246 : tensor<8x8x16xf32>
    %248 = call @atleast_2d_1(%144) : (tensor<64x16xf32>) -> tensor<64x16xf32>
    %249 = stablehlo.transpose %248, dims = [1, 0] : (tensor<64x16xf32>) -> tensor<16x64xf32>
    %250 = stablehlo.dot_general %247, %249, contracting_dims = [2] x [0], precision = [HIGHEST, HIGHEST] : (tensor<8x8x16xf32>, tensor<16x64xf32>) -> tensor<8x8x64xf32>
    %251 = stablehlo.broadcast_in_dim %146, dims = [2] : (tensor<64xf32>) -> tensor<1x1x64xf32>
    %252 = stablehlo.broadcast_in_dim %251, dims = [0, 1, 2] : (tensor<1x1x64xf32>) -> tensor<8x8x64xf32>
    %253 = stablehlo.add %252, %250 : tensor<8x8x64xf32>
    %cst_22 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %254 = stablehlo.broadcast_in_dim %cst_22, dims = [] : (tensor<f32>) -> tensor<8x8x64xf32>
    %255 = stablehlo.multiply %254, %253 : tensor<8x8x64xf32>
    %256 = stablehlo.multiply %253, %253 : tensor<8x8x64xf32>
    %257 = stablehlo.multiply %256, %253 : tensor<8x8x64xf32>
    %cst_23 = stablehlo.constant dense<4.471500e-02> : tensor<f32>
    %258 = stablehlo.broadcast_in_dim %cst_23, dims = [] : (tensor<f32>) -> tensor<8x8x64xf32>
    %259 = stablehlo.multiply %258, %257 : tensor<8x8x64xf32>
    %260 = stablehlo.add %253, %259 : tensor<8x8x64xf32>
    %cst_24 = stablehlo.constant dense<0.797884583> : tensor<f32>
    %261 = stablehlo.broadcast_in_dim %cst_24, dims = [] : (tensor<f32>) -> tensor<8x8x64xf32>
    %262 = stablehlo.multiply %261, %260 : tensor<8x8x64xf32>
    %263 = stablehlo.tanh %262 : tensor<8x8x64xf32>
    %cst_25 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %264 = stablehlo.broadcast_in_dim %cst_25, dims = [] : (tensor<f32>) -> tensor<8x8x64xf32>
    %265 = stablehlo.add %264, %263 : tensor<8x8x64xf32>
    %266 = stablehlo.multiply %255, %265 : tensor<8x8x64xf32>
    %267 = call @atleast_2d_2(%149) : (tensor<16x64xf32>) -> tensor<16x64xf32>
    %268 = stablehlo.transpose %267, dims = [1, 0] : (tensor<16x64xf32>) -> tensor<64x16xf32>
    %269 = stablehlo.dot_general %266, %268, contracting_dims = [2] x [0], precision = [HIGHEST, HIGHEST] : (tensor<8x8x64xf32>, tensor<64x16xf32>) -> tensor<8x8x16xf32>
    %270 = stablehlo.broadcast_in_dim %151, dims = [2] : (tensor<16xf32>) -> tensor<1x1x16xf32>
    %271 = stablehlo.broadcast_in_dim %270, dims = [0, 1, 2] : (tensor<1x1x16xf32>) -> tensor<8x8x16xf32>
    %272 = stablehlo.add %271, %269 : tensor<8x8x16xf32>
    %273 = stablehlo.add %225, %272 : tensor<8x8x16xf32>
    %274 = sdy.sharding_constraint %273 <@mesh, [{"fsdp"}, {}, {}]> : tensor<8x8x16xf32>
    %cst_26 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %275 = stablehlo.reduce(%274 init: %cst_26) applies stablehlo.add across dimensions = [2] : (tensor<8x8x16xf32>, tensor<f32>) -> tensor<8x8xf32>
    %276 = stablehlo.broadcast_in_dim %275, dims = [0, 1] : (tensor<8x8xf32>) -> tensor<8x8x1xf32>
    %cst_27 = stablehlo.constant dense<1.600000e+01> : tensor<f32>
    %277 = stablehlo.broadcast_in_dim %cst_27, dims = [] : (tensor<f32>) -> tensor<8x8x1xf32>
    %278 = stablehlo.divide %276, %277 : tensor<8x8x1xf32>
    %279 = stablehlo.broadcast_in_dim %278, dims = [0, 1, 2] : (tensor<8x8x1xf32>) -> tensor<8x8x16xf32>
    %280 = stablehlo.subtract %274, %279 : tensor<8x8x16xf32>
    %281 = stablehlo.multiply %280, %280 : tensor<8x8x16xf32>
    %cst_28 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %282 = stablehlo.reduce(%281 init: %cst_28) applies stablehlo.add across dimensions = [2] : (tensor<8x8x16xf32>, tensor<f32>) -> tensor<8x8xf32>
    %283 = stablehlo.broadcast_in_dim %282, dims = [0, 1] : (tensor<8x8xf32>) -> tensor<8x8x1xf32>
    %cst_29 = stablehlo.constant dense<1.600000e+01> : tensor<f32>
    %284 = stablehlo.broadcast_in_dim %cst_29, dims = [] : (tensor<f32>) -> tensor<8x8x1xf32>
    %285 = stablehlo.divide %283, %284 : tensor<8x8x1xf32>
    %cst_30 = stablehlo.constant dense<9.99999974E-6> : tensor<f32>
    %286 = stablehlo.broadcast_in_dim %cst_30, dims = [] : (tensor<f32>) -> tensor<8x8x1xf32>
    %287 = stablehlo.add %285, %286 : tensor<8x8x1xf32>
    %288 = stablehlo.rsqrt %287 : tensor<8x8x1xf32>
    %289 = stablehlo.broadcast_in_dim %288, dims = [0, 1, 2] : (tensor<8x8x1xf32>) -> tensor<8x8x16xf32>
    %290 = stablehlo.multiply %280, %289 : tensor<8x8x16xf32>
    %291 = stablehlo.broadcast_in_dim %32, dims = [2] : (tensor<16xf32>) -> tensor<1x1x16xf32>
    %292 = stablehlo.broadcast_in_dim %291, dims = [0, 1, 2] : (tensor<1x1x16xf32>) -> tensor<8x8x16xf32>
    %293 = stablehlo.multiply %290, %292 : tensor<8x8x16xf32>
    %294 = stablehlo.broadcast_in_dim %34, dims = [2] : (tensor<16xf32>) -> tensor<1x1x16xf32>
    %295 = stablehlo.broadcast_in_dim %294, dims = [0, 1, 2] : (tensor<1x1x16xf32>) -> tensor<8x8x16xf32>
    %296 = stablehlo.add %293, %295 : tensor<8x8x16xf32>
    %297 = call @atleast_2d_3(%36) : (tensor<32x16xf32>) -> tensor<32x16xf32>
    %298 = stablehlo.transpose %297, dims = [1, 0] : (tensor<32x16xf32>) -> tensor<16x32xf32>
    %299 = stablehlo.dot_general %296, %298, contracting_dims = [2] x [0], precision = [HIGHEST, HIGHEST] : (tensor<8x8x16xf32>, tensor<16x32xf32>) -> tensor<8x8x32xf32>
    %300 = sdy.sharding_constraint %299 <@mesh, [{"fsdp"}, {}, {}]> : tensor<8x8x32xf32>
    %301 = stablehlo.reshape %300 : (tensor<8x8x32xf32>) -> tensor<64x32xf32>
    %302 = stablehlo.reshape %arg18 : (tensor<8x8xi64>) -> tensor<64xi64>
    %c_31 = stablehlo.constant dense<-100> : tensor<i64>
    %303 = stablehlo.broadcast_in_dim %c_31, dims = [] : (tensor<i64>) -> tensor<64xi64>
    %304 = stablehlo.compare NE, %302, %303, SIGNED : (tensor<64xi64>, tensor<64xi64>) -> tensor<64xi1>
    %c_32 = stablehlo.constant dense<0> : tensor<i64>
    %305 = call @_where_4(%304, %302, %c_32) : (tensor<64xi1>, tensor<64xi64>, tensor<i64>) -> tensor<64xi64>
    %cst_33 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %cst_34 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %306 = call @_where_5(%304, %cst_33, %cst_34) : (tensor<64xi1>, tensor<f32>, tensor<f32>) -> tensor<64xf32>
    %cst_35 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %307 = stablehlo.reduce(%301 init: %cst_35) applies stablehlo.maximum across dimensions = [1] : (tensor<64x32xf32>, tensor<f32>) -> tensor<64xf32>
    %cst_36 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %308 = stablehlo.broadcast_in_dim %cst_36, dims = [] : (tensor<f32>) -> tensor<64xf32>
    %309 = stablehlo.maximum %308, %307 : tensor<64xf32>
    %310 = stablehlo.broadcast_in_dim %309, dims = [0] : (tensor<64xf32>) -> tensor<64x1xf32>
    %311 = stablehlo.broadcast_in_dim %310, dims = [0, 1] : (tensor<64x1xf32>) -> tensor<64x32xf32>
    %312 = stablehlo.subtract %301, %311 : tensor<64x32xf32>
    %313 = stablehlo.exponential %312 : tensor<64x32xf32>
    %cst_37 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %314 = stablehlo.reduce(%313 init: %cst_37) applies stablehlo.add across dimensions = [1] : (tensor<64x32xf32>, tensor<f32>) -> tensor<64xf32>
    %315 = stablehlo.log %314 : tensor<64xf32>
    %316 = stablehlo.reshape %310 : (tensor<64x1xf32>) -> tensor<64xf32>
    %317 = stablehlo.broadcast_in_dim %305, dims = [0] : (tensor<64xi64>) -> tensor<64x1xi64>
    %318 = call @take_along_axis(%301, %317) : (tensor<64x32xf32>, tensor<64x1xi64>) -> tensor<64x1xf32>
    %319 = stablehlo.reshape %318 : (tensor<64x1xf32>) -> tensor<64xf32>
    %320 = stablehlo.subtract %319, %316 : tensor<64xf32>
    %321 = stablehlo.subtract %315, %320 : tensor<64xf32>
    %322 = stablehlo.multiply %306, %321 : tensor<64xf32>
    %c_38 = stablehlo.constant dense<-100> : tensor<i64>
    %323 = stablehlo.broadcast_in_dim %c_38, dims = [] : (tensor<i64>) -> tensor<64xi64>
    %324 = stablehlo.compare NE, %302, %323, SIGNED : (tensor<64xi64>, tensor<64xi64>) -> tensor<64xi1>
    %cst_39 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %325 = call @_where_6(%324, %322, %cst_39) : (tensor<64xi1>, tensor<64xf32>, tensor<f32>) -> tensor<64xf32>
    %cst_40 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %326 = stablehlo.reduce(%306 init: %cst_40) applies stablehlo.add across dimensions = [0] : (tensor<64xf32>, tensor<f32>) -> tensor<f32>
    %cst_41 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %327 = stablehlo.reduce(%325 init: %cst_41) applies stablehlo.add across dimensions = [0] : (tensor<64xf32>, tensor<f32>) -> tensor<f32>
    %328 = stablehlo.divide %327, %326 : tensor<f32>
    %329 = stablehlo.add %315, %316 : tensor<64xf32>
    %c_42 = stablehlo.constant dense<-100> : tensor<i64>
    %330 = stablehlo.broadcast_in_dim %c_42, dims = [] : (tensor<i64>) -> tensor<64xi64>
    %331 = stablehlo.compare NE, %302, %330, SIGNED : (tensor<64xi64>, tensor<64xi64>) -> tensor<64xi1>
    %c_43 = stablehlo.constant dense<0> : tensor<i64>
    %332 = call @_where_4(%331, %302, %c_43) : (tensor<64xi1>, tensor<64xi64>, tensor<i64>) -> tensor<64xi64>
    %cst_44 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %cst_45 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %333 = call @_where_5(%331, %cst_44, %cst_45) : (tensor<64xi1>, tensor<f32>, tensor<f32>) -> tensor<64xf32>
    %cst_46 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %334 = stablehlo.divide %cst_46, %326 : tensor<f32>
    %c_47 = stablehlo.constant dense<-100> : tensor<i64>
    %335 = stablehlo.broadcast_in_dim %c_47, dims = [] : (tensor<i64>) -> tensor<64xi64>
    %336 = stablehlo.compare NE, %302, %335, SIGNED : (tensor<64xi64>, tensor<64xi64>) -> tensor<64xi1>
    %cst_48 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %337 = call @_where_7(%336, %334, %cst_48) : (tensor<64xi1>, tensor<f32>, tensor<f32>) -> tensor<64xf32>
    %338 = stablehlo.multiply %333, %337 : tensor<64xf32>
    %339 = stablehlo.iota dim = 1 : tensor<64x32xi32>
    %340 = stablehlo.convert %332 : (tensor<64xi64>) -> tensor<64xi32>
    %341 = stablehlo.broadcast_in_dim %340, dims = [0] : (tensor<64xi32>) -> tensor<64x1xi32>
    %342 = stablehlo.broadcast_in_dim %341, dims = [0, 1] : (tensor<64x1xi32>) -> tensor<64x32xi32>
    %343 = stablehlo.compare EQ, %339, %342, SIGNED : (tensor<64x32xi32>, tensor<64x32xi32>) -> tensor<64x32xi1>
    %344 = stablehlo.broadcast_in_dim %338, dims = [0] : (tensor<64xf32>) -> tensor<64x1xf32>
    %345 = stablehlo.broadcast_in_dim %329, dims = [0] : (tensor<64xf32>) -> tensor<64x1xf32>
    %346 = stablehlo.broadcast_in_dim %345, dims = [0, 1] : (tensor<64x1xf32>) -> tensor<64x32xf32>
    %347 = stablehlo.subtract %301, %346 : tensor<64x32xf32>
    %348 = stablehlo.exponential %347 : tensor<64x32xf32>
    %349 = stablehlo.broadcast_in_dim %344, dims = [0, 1] : (tensor<64x1xf32>) -> tensor<64x32xf32>
    %350 = stablehlo.multiply %349, %348 : tensor<64x32xf32>
    %351 = stablehlo.broadcast_in_dim %338, dims = [0] : (tensor<64xf32>) -> tensor<64x1xf32>
    %cst_49 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %352 = call @_where_8(%343, %351, %cst_49) : (tensor<64x32xi1>, tensor<64x1xf32>, tensor<f32>) -> tensor<64x32xf32>
    %353 = stablehlo.subtract %350, %352 : tensor<64x32xf32>
    %354 = stablehlo.reshape %353 : (tensor<64x32xf32>) -> tensor<8x8x32xf32>
    %355 = stablehlo.reshape %354 : (tensor<8x8x32xf32>) -> tensor<64x32xf32>
    %356 = stablehlo.reshape %296 : (tensor<8x8x16xf32>) -> tensor<64x16xf32>
    %357 = stablehlo.dot_general %354, %36, contracting_dims = [2] x [0], precision = [HIGHEST, HIGHEST] : (tensor<8x8x32xf32>, tensor<32x16xf32>) -> tensor<8x8x16xf32>
    %358 = stablehlo.transpose %355, dims = [1, 0] : (tensor<64x32xf32>) -> tensor<32x64xf32>
    %359 = stablehlo.dot_general %358, %356, contracting_dims = [1] x [0], precision = [HIGHEST, HIGHEST] : (tensor<32x64xf32>, tensor<64x16xf32>) -> tensor<32x16xf32>
    %360 = sdy.sharding_constraint %359 <@mesh, [{}, {}]> : tensor<32x16xf32>
    %361 = sdy.sharding_constraint %360 <@mesh, [{"fsdp"}, {}]> : tensor<32x16xf32>
    %362 = stablehlo.optimization_barrier %361 : tensor<32x16xf32>
    %363 = stablehlo.broadcast_in_dim %278, dims = [0, 1, 2] : (tensor<8x8x1xf32>) -> tensor<8x8x16xf32>
    %364 = stablehlo.subtract %274, %363 : tensor<8x8x16xf32>
    %365 = stablehlo.broadcast_in_dim %288, dims = [0, 1, 2] : (tensor<8x8x1xf32>) -> tensor<8x8x16xf32>
    %366 = stablehlo.multiply %364, %365 : tensor<8x8x16xf32>
    %367 = stablehlo.broadcast_in_dim %32, dims = [2] : (tensor<16xf32>) -> tensor<1x1x16xf32>
    %368 = stablehlo.broadcast_in_dim %367, dims = [0, 1, 2] : (tensor<1x1x16xf32>) -> tensor<8x8x16xf32>
    %369 = stablehlo.multiply %357, %368 : tensor<8x8x16xf32>
    %cst_50 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %370 = stablehlo.reduce(%369 init: %cst_50) applies stablehlo.add across dimensions = [2] : (tensor<8x8x16xf32>, tensor<f32>) -> tensor<8x8xf32>
    %371 = stablehlo.broadcast_in_dim %370, dims = [0, 1] : (tensor<8x8xf32>) -> tensor<8x8x1xf32>
    %cst_51 = stablehlo.constant dense<1.600000e+01> : tensor<f32>
    %372 = stablehlo.broadcast_in_dim %cst_51, dims = [] : (tensor<f32>) -> tensor<8x8x1xf32>
    %373 = stablehlo.divide %371, %372 : tensor<8x8x1xf32>
    %374 = stablehlo.multiply %369, %366 : tensor<8x8x16xf32>
    %cst_52 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %375 = stablehlo.reduce(%374 init: %cst_52) applies stablehlo.add across dimensions = [2] : (tensor<8x8x16xf32>, tensor<f32>) -> tensor<8x8xf32>
    %376 = stablehlo.broadcast_in_dim %375, dims = [0, 1] : (tensor<8x8xf32>) -> tensor<8x8x1xf32>
    %cst_53 = stablehlo.constant dense<1.600000e+01> : tensor<f32>
    %377 = stablehlo.broadcast_in_dim %cst_53, dims = [] : (tensor<f32>) -> tensor<8x8x1xf32>
    %378 = stablehlo.divide %376, %377 : tensor<8x8x1xf32>
    %379 = stablehlo.broadcast_in_dim %373, dims = [0, 1, 2] : (tensor<8x8x1xf32>) -> tensor<8x8x16xf32>
    %380 = stablehlo.subtract %369, %379 : tensor<8x8x16xf32>
    %381 = stablehlo.broadcast_in_dim %378, dims = [0, 1, 2] : (tensor<8x8x1xf32>) -> tensor<8x8x16xf32>
    %382 = stablehlo.multiply %366, %381 : tensor<8x8x16xf32>
    %383 = stablehlo.subtract %380, %382 : tensor<8x8x16xf32>
    %384 = stablehlo.broadcast_in_dim %288, dims = [0, 1, 2] : (tensor<8x8x1xf32>) -> tensor<8x8x16xf32>
    %385 = stablehlo.multiply %384, %383 : tensor<8x8x16xf32>
    %386 = stablehlo.multiply %357, %366 : tensor<8x8x16xf32>
    %cst_54 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %387 = stablehlo.reduce(%386 init: %cst_54) applies stablehlo.add across dimensions = [0, 1] : (tensor<8x8x16xf32>, tensor<f32>) -> tensor<16xf32>
    %cst_55 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %388 = stablehlo.reduce(%357 init: %cst_55) applies stablehlo.add across dimensions = [0, 1] : (tensor<8x8x16xf32>, tensor<f32>) -> tensor<16xf32>
    %389 = sdy.sharding_constraint %387 <@mesh, [{}]> : tensor<16xf32>
    %390 = sdy.sharding_constraint %389 <@mesh, [{"fsdp"}]> : tensor<16xf32>
    %391 = stablehlo.optimization_barrier %390 : tensor<16xf32>
    %392 = sdy.sharding_constraint %388 <@mesh, [{}]> : tensor<16xf32>
    %393 = sdy.sharding_constraint %392 <@mesh, [{"fsdp"}]> : tensor<16xf32>
    %394 = stablehlo.optimization_barrier %393 : tensor<16xf32>
    %395:13 = stablehlo.optimization_barrier %arg6, %arg7, %arg8, %arg9, %arg10, %arg11, %arg12, %arg13, %arg14, %arg15, %arg16, %arg17, %385 : tensor<16xf32>, tensor<16xf32>, tensor<48x16xf32>, tensor<48xf32>, tensor<16x16xf32>, tensor<16xf32>, tensor<16xf32>, tensor<16xf32>, tensor<64x16xf32>, tensor<64xf32>, tensor<16x64xf32>, tensor<16xf32>, tensor<8x8x16xf32>
    %396 = sdy.sharding_constraint %395#0 <@mesh, [{"fsdp"}]> : tensor<16xf32>
    %397 = sdy.sharding_constraint %395#1 <@mesh, [{"fsdp"}]> : tensor<16xf32>
    %398 = sdy.sharding_constraint %395#2 <@mesh, [{"fsdp"}, {}]> : tensor<48x16xf32>
    %399 = sdy.sharding_constraint %395#3 <@mesh, [{"fsdp"}]> : tensor<48xf32>
    %400 = sdy.sharding_constraint %395#4 <@mesh, [{"fsdp"}, {}]> : tensor<16x16xf32>
    %401 = sdy.sharding_constraint %395#5 <@mesh, [{"fsdp"}]> : tensor<16xf32>
    %402 = sdy.sharding_constraint %395#6 <@mesh, [{"fsdp"}]> : tensor<16xf32>
    %403 = sdy.sharding_constraint %395#7 <@mesh, [{"fsdp"}]> : tensor<16xf32>
    %404 = sdy.sharding_constraint %395#8 <@mesh, [{"fsdp"}, {}]> : tensor<64x16xf32>
    %405 = sdy.sharding_constraint %395#9 <@mesh, [{"fsdp"}]> : tensor<64xf32>
    %406 = sdy.sharding_constraint %395#10 <@mesh, [{}, {"fsdp"}]> : tensor<16x64xf32>
    %407 = sdy.sharding_constraint %395#11 <@mesh, [{"fsdp"}]> : tensor<16xf32>
    %408 = stablehlo.reshape %396 : (tensor<16xf32>) -> tensor<16x1xf32>
    %409 = stablehlo.reshape %408 : (tensor<16x1xf32>) -> tensor<8x2x1xf32>
    %410 = stablehlo.reshape %409 : (tensor<8x2x1xf32>) -> tensor<8x2xf32>
    %411 = sdy.sharding_constraint %410 <@mesh, [{"fsdp"}, {}]> : tensor<8x2xf32>
    %412 = stablehlo.reshape %397 : (tensor<16xf32>) -> tensor<16x1xf32>
    %413 = stablehlo.reshape %412 : (tensor<16x1xf32>) -> tensor<8x2x1xf32>
    %414 = stablehlo.reshape %413 : (tensor<8x2x1xf32>) -> tensor<8x2xf32>
    %415 = sdy.sharding_constraint %414 <@mesh, [{"fsdp"}, {}]> : tensor<8x2xf32>
    %416 = stablehlo.reshape %398 : (tensor<48x16xf32>) -> tensor<8x6x16xf32>
    %417 = stablehlo.reshape %416 : (tensor<8x6x16xf32>) -> tensor<8x96xf32>
    %418 = sdy.sharding_constraint %417 <@mesh, [{"fsdp"}, {}]> : tensor<8x96xf32>
    %419 = stablehlo.reshape %399 : (tensor<48xf32>) -> tensor<48x1xf32>
    %420 = stablehlo.reshape %419 : (tensor<48x1xf32>) -> tensor<8x6x1xf32>
    %421 = stablehlo.reshape %420 : (tensor<8x6x1xf32>) -> tensor<8x6xf32>
    %422 = sdy.sharding_constraint %421 <@mesh, [{"fsdp"}, {}]> : tensor<8x6xf32>
    %423 = stablehlo.reshape %400 : (tensor<16x16xf32>) -> tensor<8x2x16xf32>
    %424 = stablehlo.reshape %423 : (tensor<8x2x16xf32>) -> tensor<8x32xf32>
    %425 = sdy.sharding_constraint %424 <@mesh, [{"fsdp"}, {}]> : tensor<8x32xf32>
    %426 = stablehlo.reshape %401 : (tensor<16xf32>) -> tensor<16x1xf32>
    %427 = stablehlo.reshape %426 : (tensor<16x1xf32>) -> tensor<8x2x1xf32>
    %428 = stablehlo.reshape %427 : (tensor<8x2x1xf32>) -> tensor<8x2xf32>
    %429 = sdy.sharding_constraint %428 <@mesh, [{"fsdp"}, {}]> : tensor<8x2xf32>
    %430 = stablehlo.reshape %402 : (tensor<16xf32>) -> tensor<16x1xf32>
    %431 = stablehlo.reshape %430 : (tensor<16x1xf32>) -> tensor<8x2x1xf32>
    %432 = stablehlo.reshape %431 : (tensor<8x2x1xf32>) -> tensor<8x2xf32>
    %433 = sdy.sharding_constraint %432 <@mesh, [{"fsdp"}, {}]> : tensor<8x2xf32>
    %434 = stablehlo.reshape %403 : (tensor<16xf32>) -> tensor<16x1xf32>
    %435 = stablehlo.reshape %434 : (tensor<16x1xf32>) -> tensor<8x2x1xf32>
    %436 = stablehlo.reshape %435 : (tensor<8x2x1xf32>) -> tensor<8x2xf32>
    %437 = sdy.sharding_constraint %436 <@mesh, [{"fsdp"}, {}]> : tensor<8x2xf32>
    %438 = stablehlo.reshape %404 : (tensor<64x16xf32>) -> tensor<8x8x16xf32>
    %439 = stablehlo.reshape %438 : (tensor<8x8x16xf32>) -> tensor<8x128xf32>
    %440 = sdy.sharding_constraint %439 <@mesh, [{"fsdp"}, {}]> : tensor<8x128xf32>
    %441 = stablehlo.reshape %405 : (tensor<64xf32>) -> tensor<64x1xf32>
    %442 = stablehlo.reshape %441 : (tensor<64x1xf32>) -> tensor<8x8x1xf32>
    %443 = stablehlo.reshape %442 : (tensor<8x8x1xf32>) -> tensor<8x8xf32>
    %444 = sdy.sharding_constraint %443 <@mesh, [{"fsdp"}, {}]> : tensor<8x8xf32>
    %445 = stablehlo.transpose %406, dims = [1, 0] : (tensor<16x64xf32>) -> tensor<64x16xf32>
    %446 = stablehlo.reshape %445 : (tensor<64x16xf32>) -> tensor<8x8x16xf32>
    %447 = stablehlo.reshape %446 : (tensor<8x8x16xf32>) -> tensor<8x128xf32>
    %448 = sdy.sharding_constraint %447 <@mesh, [{"fsdp"}, {}]> : tensor<8x128xf32>
    %449 = stablehlo.reshape %407 : (tensor<16xf32>) -> tensor<16x1xf32>
    %450 = stablehlo.reshape %449 : (tensor<16x1xf32>) -> tensor<8x2x1xf32>
    %451 = stablehlo.reshape %450 : (tensor<8x2x1xf32>) -> tensor<8x2xf32>
    %452 = sdy.sharding_constraint %451 <@mesh, [{"fsdp"}, {}]> : tensor<8x2xf32>
    %453 = stablehlo.concatenate %411, %415, %418, %422, %425, %429, %433, %437, %440, %444, %448, %452, dim = 1 : (tensor<8x2xf32>, tensor<8x2xf32>, tensor<8x96xf32>, tensor<8x6xf32>, tensor<8x32xf32>, tensor<8x2xf32>, tensor<8x2xf32>, tensor<8x2xf32>, tensor<8x128xf32>, tensor<8x8xf32>, tensor<8x128xf32>, tensor<8x2xf32>) -> tensor<8x410xf32>
    %454 = sdy.sharding_constraint %453 <@mesh, [{"fsdp"}, {}]> : tensor<8x410xf32>
    %455 = sdy.sharding_constraint %454 <@mesh, [{}, {}]> : tensor<8x410xf32>
    %456 = stablehlo.slice %455 [0:8, 0:2] : (tensor<8x410xf32>) -> tensor<8x2xf32>
    %457 = stablehlo.reshape %456 : (tensor<8x2xf32>) -> tensor<16xf32>
    %458 = stablehlo.slice %455 [0:8, 2:4] : (tensor<8x410xf32>) -> tensor<8x2xf32>
    %459 = stablehlo.reshape %458 : (tensor<8x2xf32>) -> tensor<16xf32>
    %460 = stablehlo.slice %455 [0:8, 4:100] : (tensor<8x410xf32>) -> tensor<8x96xf32>
    %461 = stablehlo.reshape %460 : (tensor<8x96xf32>) -> tensor<48x16xf32>
    %462 = stablehlo.slice %455 [0:8, 100:106] : (tensor<8x410xf32>) -> tensor<8x6xf32>
    %463 = stablehlo.reshape %462 : (tensor<8x6xf32>) -> tensor<48xf32>
    %464 = stablehlo.slice %455 [0:8, 106:138] : (tensor<8x410xf32>) -> tensor<8x32xf32>
    %465 = stablehlo.reshape %464 : (tensor<8x32xf32>) -> tensor<16x16xf32>
    %466 = stablehlo.slice %455 [0:8, 138:140] : (tensor<8x410xf32>) -> tensor<8x2xf32>
    %467 = stablehlo.reshape %466 : (tensor<8x2xf32>) -> tensor<16xf32>
    %468 = stablehlo.slice %455 [0:8, 140:142] : (tensor<8x410xf32>) -> tensor<8x2xf32>
    %469 = stablehlo.reshape %468 : (tensor<8x2xf32>) -> tensor<16xf32>
    %470 = stablehlo.slice %455 [0:8, 142:144] : (tensor<8x410xf32>) -> tensor<8x2xf32>
    %471 = stablehlo.reshape %470 : (tensor<8x2xf32>) -> tensor<16xf32>
    %472 = stablehlo.slice %455 [0:8, 144:272] : (tensor<8x410xf32>) -> tensor<8x128xf32>
    %473 = stablehlo.reshape %472 : (tensor<8x128xf32>) -> tensor<64x16xf32>
    %474 = stablehlo.slice %455 [0:8, 272:280] : (tensor<8x410xf32>) -> tensor<8x8xf32>
    %475 = stablehlo.reshape %474 : (tensor<8x8xf32>) -> tensor<64xf32>
    %476 = stablehlo.slice %455 [0:8, 280:408] : (tensor<8x410xf32>) -> tensor<8x128xf32>
    %477 = stablehlo.reshape %476 : (tensor<8x128xf32>) -> tensor<64x16xf32>
    %478 = stablehlo.transpose %477, dims = [1, 0] : (tensor<64x16xf32>) -> tensor<16x64xf32>
    %479 = stablehlo.slice %455 [0:8, 408:410] : (tensor<8x410xf32>) -> tensor<8x2xf32>
    %480 = stablehlo.reshape %479 : (tensor<8x2xf32>) -> tensor<16xf32>
    %481 = stablehlo.reshape %395#12 : (tensor<8x8x16xf32>) -> tensor<64x16xf32>
    %482 = stablehlo.reshape %266 : (tensor<8x8x64xf32>) -> tensor<64x64xf32>
    %483 = stablehlo.dot_general %395#12, %478, contracting_dims = [2] x [0], precision = [HIGHEST, HIGHEST] : (tensor<8x8x16xf32>, tensor<16x64xf32>) -> tensor<8x8x64xf32>
    %484 = stablehlo.transpose %481, dims = [1, 0] : (tensor<64x16xf32>) -> tensor<16x64xf32>
    %485 = stablehlo.dot_general %484, %482, contracting_dims = [1] x [0], precision = [HIGHEST, HIGHEST] : (tensor<16x64xf32>, tensor<64x64xf32>) -> tensor<16x64xf32>
    %cst_56 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %486 = stablehlo.reduce(%481 init: %cst_56) applies stablehlo.add across dimensions = [0] : (tensor<64x16xf32>, tensor<f32>) -> tensor<16xf32>
    %487 = sdy.sharding_constraint %485 <@mesh, [{}, {}]> : tensor<16x64xf32>
    %488 = sdy.sharding_constraint %487 <@mesh, [{}, {"fsdp"}]> : tensor<16x64xf32>
    %489 = stablehlo.optimization_barrier %488 : tensor<16x64xf32>
    %490 = sdy.sharding_constraint %486 <@mesh, [{}]> : tensor<16xf32>
    %491 = sdy.sharding_constraint %490 <@mesh, [{"fsdp"}]> : tensor<16xf32>
    %492 = stablehlo.optimization_barrier %491 : tensor<16xf32>
    %493 = stablehlo.multiply %253, %253 : tensor<8x8x64xf32>
    %494 = stablehlo.multiply %493, %253 : tensor<8x8x64xf32>
    %cst_57 = stablehlo.constant dense<4.471500e-02> : tensor<f32>
    %495 = stablehlo.broadcast_in_dim %cst_57, dims = [] : (tensor<f32>) -> tensor<8x8x64xf32>
    %496 = stablehlo.multiply %495, %494 : tensor<8x8x64xf32>
    %497 = stablehlo.add %253, %496 : tensor<8x8x64xf32>
    %cst_58 = stablehlo.constant dense<0.797884583> : tensor<f32>
    %498 = stablehlo.broadcast_in_dim %cst_58, dims = [] : (tensor<f32>) -> tensor<8x8x64xf32>
    %499 = stablehlo.multiply %498, %497 : tensor<8x8x64xf32>
    %500 = stablehlo.tanh %499 : tensor<8x8x64xf32>
    %cst_59 = stablehlo.constant dense<1.341450e-01> : tensor<f32>
    %501 = stablehlo.broadcast_in_dim %cst_59, dims = [] : (tensor<f32>) -> tensor<8x8x64xf32>
    %502 = stablehlo.multiply %501, %493 : tensor<8x8x64xf32>
    %cst_60 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %503 = stablehlo.broadcast_in_dim %cst_60, dims = [] : (tensor<f32>) -> tensor<8x8x64xf32>
    %504 = stablehlo.add %503, %502 : tensor<8x8x64xf32>
    %cst_61 = stablehlo.constant dense<0.797884583> : tensor<f32>
    %505 = stablehlo.broadcast_in_dim %cst_61, dims = [] : (tensor<f32>) -> tensor<8x8x64xf32>
    %506 = stablehlo.multiply %505, %504 : tensor<8x8x64xf32>
    %cst_62 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %507 = stablehlo.broadcast_in_dim %cst_62, dims = [] : (tensor<f32>) -> tensor<8x8x64xf32>
    %508 = stablehlo.add %507, %500 : tensor<8x8x64xf32>
    %cst_63 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %509 = stablehlo.broadcast_in_dim %cst_63, dims = [] : (tensor<f32>) -> tensor<8x8x64xf32>
    %510 = stablehlo.multiply %509, %508 : tensor<8x8x64xf32>
    %cst_64 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %511 = stablehlo.broadcast_in_dim %cst_64, dims = [] : (tensor<f32>) -> tensor<8x8x64xf32>
    %512 = stablehlo.multiply %511, %253 : tensor<8x8x64xf32>
    %513 = stablehlo.multiply %500, %500 : tensor<8x8x64xf32>
    %cst_65 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %514 = stablehlo.broadcast_in_dim %cst_65, dims = [] : (tensor<f32>) -> tensor<8x8x64xf32>
    %515 = stablehlo.subtract %514, %513 : tensor<8x8x64xf32>
    %516 = stablehlo.multiply %512, %515 : tensor<8x8x64xf32>
    %517 = stablehlo.multiply %516, %506 : tensor<8x8x64xf32>
    %518 = stablehlo.add %510, %517 : tensor<8x8x64xf32>
    %519 = stablehlo.multiply %483, %518 : tensor<8x8x64xf32>
    %520 = stablehlo.reshape %519 : (tensor<8x8x64xf32>) -> tensor<64x64xf32>
    %521 = stablehlo.reshape %247 : (tensor<8x8x16xf32>) -> tensor<64x16xf32>
    %522 = stablehlo.dot_general %519, %473, contracting_dims = [2] x [0], precision = [HIGHEST, HIGHEST] : (tensor<8x8x64xf32>, tensor<64x16xf32>) -> tensor<8x8x16xf32>
    %523 = stablehlo.transpose %520, dims = [1, 0] : (tensor<64x64xf32>) -> tensor<64x64xf32>
    %524 = stablehlo.dot_general %523, %521, contracting_dims = [1] x [0], precision = [HIGHEST, HIGHEST] : (tensor<64x64xf32>, tensor<64x16xf32>) -> tensor<64x16xf32>
    %cst_66 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %525 = stablehlo.reduce(%520 init: %cst_66) applies stablehlo.add across dimensions = [0] : (tensor<64x64xf32>, tensor<f32>) -> tensor<64xf32>
    %526 = sdy.sharding_constraint %524 <@mesh, [{}, {}]> : tensor<64x16xf32>
    %527 = sdy.sharding_constraint %526 <@mesh, [{"fsdp"}, {}]> : tensor<64x16xf32>
    %528 = stablehlo.optimization_barrier %527 : tensor<64x16xf32>
    %529 = sdy.sharding_constraint %525 <@mesh, [{}]> : tensor<64xf32>
    %530 = sdy.sharding_constraint %529 <@mesh, [{"fsdp"}]> : tensor<64xf32>
    %531 = stablehlo.optimization_barrier %530 : tensor<64xf32>
    %532 = stablehlo.broadcast_in_dim %229, dims = [0, 1, 2] : (tensor<8x8x1xf32>) -> tensor<8x8x16xf32>
    %533 = stablehlo.subtract %225, %532 : tensor<8x8x16xf32>
    %534 = stablehlo.broadcast_in_dim %239, dims = [0, 1, 2] : (tensor<8x8x1xf32>) -> tensor<8x8x16xf32>
    %535 = stablehlo.multiply %533, %534 : tensor<8x8x16xf32>
    %536 = stablehlo.broadcast_in_dim %469, dims = [2] : (tensor<16xf32>) -> tensor<1x1x16xf32>
    %537 = stablehlo.broadcast_in_dim %536, dims = [0, 1, 2] : (tensor<1x1x16xf32>) -> tensor<8x8x16xf32>
    %538 = stablehlo.multiply %522, %537 : tensor<8x8x16xf32>
    %cst_67 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %539 = stablehlo.reduce(%538 init: %cst_67) applies stablehlo.add across dimensions = [2] : (tensor<8x8x16xf32>, tensor<f32>) -> tensor<8x8xf32>
    %540 = stablehlo.broadcast_in_dim %539, dims = [0, 1] : (tensor<8x8xf32>) -> tensor<8x8x1xf32>
    %cst_68 = stablehlo.constant dense<1.600000e+01> : tensor<f32>
    %541 = stablehlo.broadcast_in_dim %cst_68, dims = [] : (tensor<f32>) -> tensor<8x8x1xf32>
    %542 = stablehlo.divide %540, %541 : tensor<8x8x1xf32>
    %543 = stablehlo.multiply %538, %535 : tensor<8x8x16xf32>
    %cst_69 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %544 = stablehlo.reduce(%543 init: %cst_69) applies stablehlo.add across dimensions = [2] : (tensor<8x8x16xf32>, tensor<f32>) -> tensor<8x8xf32>
    %545 = stablehlo.broadcast_in_dim %544, dims = [0, 1] : (tensor<8x8xf32>) -> tensor<8x8x1xf32>
    %cst_70 = stablehlo.constant dense<1.600000e+01> : tensor<f32>
    %546 = stablehlo.broadcast_in_dim %cst_70, dims = [] : (tensor<f32>) -> tensor<8x8x1xf32>
    %547 = stablehlo.divide %545, %546 : tensor<8x8x1xf32>
    %548 = stablehlo.broadcast_in_dim %542, dims = [0, 1, 2] : (tensor<8x8x1xf32>) -> tensor<8x8x16xf32>
    %549 = stablehlo.subtract %538, %548 : tensor<8x8x16xf32>
    %550 = stablehlo.broadcast_in_dim %547, dims = [0, 1, 2] : (tensor<8x8x1xf32>) -> tensor<8x8x16xf32>
    %551 = stablehlo.multiply %535, %550 : tensor<8x8x16xf32>
    %552 = stablehlo.subtract %549, %551 : tensor<8x8x16xf32>
    %553 = stablehlo.broadcast_in_dim %239, dims = [0, 1, 2] : (tensor<8x8x1xf32>) -> tensor<8x8x16xf32>
    %554 = stablehlo.multiply %553, %552 : tensor<8x8x16xf32>
    %555 = stablehlo.multiply %522, %535 : tensor<8x8x16xf32>
    %cst_71 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %556 = stablehlo.reduce(%555 init: %cst_71) applies stablehlo.add across dimensions = [0, 1] : (tensor<8x8x16xf32>, tensor<f32>) -> tensor<16xf32>
    %cst_72 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %557 = stablehlo.reduce(%522 init: %cst_72) applies stablehlo.add across dimensions = [0, 1] : (tensor<8x8x16xf32>, tensor<f32>) -> tensor<16xf32>
    %558 = stablehlo.add %395#12, %554 : tensor<8x8x16xf32>
    %559 = sdy.sharding_constraint %556 <@mesh, [{}]> : tensor<16xf32>
    %560 = sdy.sharding_constraint %559 <@mesh, [{"fsdp"}]> : tensor<16xf32>
    %561 = stablehlo.optimization_barrier %560 : tensor<16xf32>
    %562 = sdy.sharding_constraint %557 <@mesh, [{}]> : tensor<16xf32>
    %563 = sdy.sharding_constraint %562 <@mesh, [{"fsdp"}]> : tensor<16xf32>
    %564 = stablehlo.optimization_barrier %563 : tensor<16xf32>
    %565 = stablehlo.reshape %558 : (tensor<8x8x16xf32>) -> tensor<64x16xf32>
    %566 = stablehlo.reshape %218 : (tensor<8x8x16xf32>) -> tensor<64x16xf32>
    %567 = stablehlo.dot_general %558, %465, contracting_dims = [2] x [0], precision = [HIGHEST, HIGHEST] : (tensor<8x8x16xf32>, tensor<16x16xf32>) -> tensor<8x8x16xf32>
    %568 = stablehlo.transpose %565, dims = [1, 0] : (tensor<64x16xf32>) -> tensor<16x64xf32>
    %569 = stablehlo.dot_general %568, %566, contracting_dims = [1] x [0], precision = [HIGHEST, HIGHEST] : (tensor<16x64xf32>, tensor<64x16xf32>) -> tensor<16x16xf32>
    %cst_73 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %570 = stablehlo.reduce(%565 init: %cst_73) applies stablehlo.add across dimensions = [0] : (tensor<64x16xf32>, tensor<f32>) -> tensor<16xf32>
    %571 = sdy.sharding_constraint %569 <@mesh, [{}, {}]> : tensor<16x16xf32>
    %572 = sdy.sharding_constraint %571 <@mesh, [{"fsdp"}, {}]> : tensor<16x16xf32>
    %573 = stablehlo.optimization_barrier %572 : tensor<16x16xf32>
    %574 = sdy.sharding_constraint %570 <@mesh, [{}]> : tensor<16xf32>
    %575 = sdy.sharding_constraint %574 <@mesh, [{"fsdp"}]> : tensor<16xf32>
    %576 = stablehlo.optimization_barrier %575 : tensor<16xf32>
    %577 = stablehlo.reshape %567 : (tensor<8x8x16xf32>) -> tensor<8x8x2x8xf32>
    %578 = stablehlo.transpose %577, dims = [0, 2, 1, 3] : (tensor<8x8x2x8xf32>) -> tensor<8x2x8x8xf32>
    %579 = stablehlo.dot_general %183, %186, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [3], precision = [HIGHEST, HIGHEST] : (tensor<8x2x8x8xf32>, tensor<8x2x8x8xf32>) -> tensor<8x2x8x8xf32>
    %cst_74 = stablehlo.constant dense<0.353553385> : tensor<f32>
    %580 = stablehlo.broadcast_in_dim %cst_74, dims = [] : (tensor<f32>) -> tensor<8x2x8x8xf32>
    %581 = stablehlo.multiply %579, %580 : tensor<8x2x8x8xf32>
    %582 = stablehlo.iota dim = 0 : tensor<8x8xi32>
    %583 = stablehlo.iota dim = 1 : tensor<8x8xi32>
    %584 = stablehlo.compare LE, %583, %582, SIGNED : (tensor<8x8xi32>, tensor<8x8xi32>) -> tensor<8x8xi1>
    %cst_75 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %585 = call @_where(%584, %581, %cst_75) : (tensor<8x8xi1>, tensor<8x2x8x8xf32>, tensor<f32>) -> tensor<8x2x8x8xf32>
    %cst_76 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %586 = stablehlo.reduce(%585 init: %cst_76) applies stablehlo.maximum across dimensions = [3] : (tensor<8x2x8x8xf32>, tensor<f32>) -> tensor<8x2x8xf32>
    %587 = stablehlo.broadcast_in_dim %586, dims = [0, 1, 2] : (tensor<8x2x8xf32>) -> tensor<8x2x8x1xf32>
    %588 = stablehlo.broadcast_in_dim %587, dims = [0, 1, 2, 3] : (tensor<8x2x8x1xf32>) -> tensor<8x2x8x8xf32>
    %589 = stablehlo.subtract %585, %588 : tensor<8x2x8x8xf32>
    %590 = stablehlo.exponential %589 : tensor<8x2x8x8xf32>
    %cst_77 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %591 = stablehlo.reduce(%590 init: %cst_77) applies stablehlo.add across dimensions = [3] : (tensor<8x2x8x8xf32>, tensor<f32>) -> tensor<8x2x8xf32>
    %592 = stablehlo.broadcast_in_dim %591, dims = [0, 1, 2] : (tensor<8x2x8xf32>) -> tensor<8x2x8x1xf32>
    %593 = stablehlo.log %592 : tensor<8x2x8x1xf32>
    %594 = stablehlo.add %587, %593 : tensor<8x2x8x1xf32>
    %595 = stablehlo.reshape %594 : (tensor<8x2x8x1xf32>) -> tensor<8x2x8xf32>
    %596 = stablehlo.broadcast_in_dim %592, dims = [0, 1, 2, 3] : (tensor<8x2x8x1xf32>) -> tensor<8x2x8x8xf32>
    %597 = stablehlo.divide %590, %596 : tensor<8x2x8x8xf32>
    %598 = stablehlo.dot_general %597, %578, batching_dims = [0, 1] x [0, 1], contracting_dims = [2] x [2], precision = [HIGHEST, HIGHEST] : (tensor<8x2x8x8xf32>, tensor<8x2x8x8xf32>) -> tensor<8x2x8x8xf32>
    %599 = stablehlo.dot_general %578, %189, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [3], precision = [HIGHEST, HIGHEST] : (tensor<8x2x8x8xf32>, tensor<8x2x8x8xf32>) -> tensor<8x2x8x8xf32>
    %600 = stablehlo.multiply %578, %213 : tensor<8x2x8x8xf32>
    %cst_78 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %601 = stablehlo.reduce(%600 init: %cst_78) applies stablehlo.add across dimensions = [3] : (tensor<8x2x8x8xf32>, tensor<f32>) -> tensor<8x2x8xf32>
    %602 = stablehlo.broadcast_in_dim %601, dims = [0, 1, 2] : (tensor<8x2x8xf32>) -> tensor<8x2x8x1xf32>
    %603 = stablehlo.broadcast_in_dim %602, dims = [0, 1, 2, 3] : (tensor<8x2x8x1xf32>) -> tensor<8x2x8x8xf32>
    %604 = stablehlo.subtract %599, %603 : tensor<8x2x8x8xf32>
    %605 = stablehlo.multiply %597, %604 : tensor<8x2x8x8xf32>
    %606 = stablehlo.dot_general %605, %186, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [2], precision = [HIGHEST, HIGHEST] : (tensor<8x2x8x8xf32>, tensor<8x2x8x8xf32>) -> tensor<8x2x8x8xf32>
    %cst_79 = stablehlo.constant dense<0.353553385> : tensor<f32>
    %607 = stablehlo.broadcast_in_dim %cst_79, dims = [] : (tensor<f32>) -> tensor<8x2x8x8xf32>
    %608 = stablehlo.multiply %607, %606 : tensor<8x2x8x8xf32>
    %609 = stablehlo.dot_general %605, %183, batching_dims = [0, 1] x [0, 1], contracting_dims = [2] x [2], precision = [HIGHEST, HIGHEST] : (tensor<8x2x8x8xf32>, tensor<8x2x8x8xf32>) -> tensor<8x2x8x8xf32>
    %cst_80 = stablehlo.constant dense<0.353553385> : tensor<f32>
    %610 = stablehlo.broadcast_in_dim %cst_80, dims = [] : (tensor<f32>) -> tensor<8x2x8x8xf32>
    %611 = stablehlo.multiply %610, %609 : tensor<8x2x8x8xf32>
    %612 = stablehlo.transpose %608, dims = [0, 2, 1, 3] : (tensor<8x2x8x8xf32>) -> tensor<8x8x2x8xf32>
    %613 = stablehlo.transpose %611, dims = [0, 2, 1, 3] : (tensor<8x2x8x8xf32>) -> tensor<8x8x2x8xf32>
    %614 = stablehlo.transpose %598, dims = [0, 2, 1, 3] : (tensor<8x2x8x8xf32>) -> tensor<8x8x2x8xf32>
    %615 = stablehlo.broadcast_in_dim %612, dims = [0, 1, 3, 4] : (tensor<8x8x2x8xf32>) -> tensor<8x8x1x2x8xf32>
    %616 = stablehlo.broadcast_in_dim %613, dims = [0, 1, 3, 4] : (tensor<8x8x2x8xf32>) -> tensor<8x8x1x2x8xf32>
    %617 = stablehlo.broadcast_in_dim %614, dims = [0, 1, 3, 4] : (tensor<8x8x2x8xf32>) -> tensor<8x8x1x2x8xf32>
    %618 = stablehlo.concatenate %615, %616, %617, dim = 2 : (tensor<8x8x1x2x8xf32>, tensor<8x8x1x2x8xf32>, tensor<8x8x1x2x8xf32>) -> tensor<8x8x3x2x8xf32>
    %619 = stablehlo.reshape %618 : (tensor<8x8x3x2x8xf32>) -> tensor<8x8x48xf32>
    %620 = stablehlo.reshape %619 : (tensor<8x8x48xf32>) -> tensor<64x48xf32>
    %621 = stablehlo.reshape %173 : (tensor<8x8x16xf32>) -> tensor<64x16xf32>
    %622 = stablehlo.dot_general %619, %461, contracting_dims = [2] x [0], precision = [HIGHEST, HIGHEST] : (tensor<8x8x48xf32>, tensor<48x16xf32>) -> tensor<8x8x16xf32>
    %623 = stablehlo.transpose %620, dims = [1, 0] : (tensor<64x48xf32>) -> tensor<48x64xf32>
    %624 = stablehlo.dot_general %623, %621, contracting_dims = [1] x [0], precision = [HIGHEST, HIGHEST] : (tensor<48x64xf32>, tensor<64x16xf32>) -> tensor<48x16xf32>
    %cst_81 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %625 = stablehlo.reduce(%620 init: %cst_81) applies stablehlo.add across dimensions = [0] : (tensor<64x48xf32>, tensor<f32>) -> tensor<48xf32>
    %626 = sdy.sharding_constraint %624 <@mesh, [{}, {}]> : tensor<48x16xf32>
    %627 = sdy.sharding_constraint %626 <@mesh, [{"fsdp"}, {}]> : tensor<48x16xf32>
    %628 = stablehlo.optimization_barrier %627 : tensor<48x16xf32>
    %629 = sdy.sharding_constraint %625 <@mesh, [{}]> : tensor<48xf32>
    %630 = sdy.sharding_constraint %629 <@mesh, [{"fsdp"}]> : tensor<48xf32>
    %631 = stablehlo.optimization_barrier %630 : tensor<48xf32>
    %632 = stablehlo.broadcast_in_dim %155, dims = [0, 1, 2] : (tensor<8x8x1xf32>) -> tensor<8x8x16xf32>
    %633 = stablehlo.subtract %66#12, %632 : tensor<8x8x16xf32>
    %634 = stablehlo.broadcast_in_dim %165, dims = [0, 1, 2] : (tensor<8x8x1xf32>) -> tensor<8x8x16xf32>
    %635 = stablehlo.multiply %633, %634 : tensor<8x8x16xf32>
    %636 = stablehlo.broadcast_in_dim %457, dims = [2] : (tensor<16xf32>) -> tensor<1x1x16xf32>
    %637 = stablehlo.broadcast_in_dim %636, dims = [0, 1, 2] : (tensor<1x1x16xf32>) -> tensor<8x8x16xf32>
    %638 = stablehlo.multiply %622, %637 : tensor<8x8x16xf32>
    %cst_82 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %639 = stablehlo.reduce(%638 init: %cst_82) applies stablehlo.add across dimensions = [2] : (tensor<8x8x16xf32>, tensor<f32>) -> tensor<8x8xf32>
    %640 = stablehlo.broadcast_in_dim %639, dims = [0, 1] : (tensor<8x8xf32>) -> tensor<8x8x1xf32>
    %cst_83 = stablehlo.constant dense<1.600000e+01> : tensor<f32>
    %641 = stablehlo.broadcast_in_dim %cst_83, dims = [] : (tensor<f32>) -> tensor<8x8x1xf32>
    %642 = stablehlo.divide %640, %641 : tensor<8x8x1xf32>
    %643 = stablehlo.multiply %638, %635 : tensor<8x8x16xf32>
    %cst_84 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %644 = stablehlo.reduce(%643 init: %cst_84) applies stablehlo.add across dimensions = [2] : (tensor<8x8x16xf32>, tensor<f32>) -> tensor<8x8xf32>
    %645 = stablehlo.broadcast_in_dim %644, dims = [0, 1] : (tensor<8x8xf32>) -> tensor<8x8x1xf32>
    %cst_85 = stablehlo.constant dense<1.600000e+01> : tensor<f32>
    %646 = stablehlo.broadcast_in_dim %cst_85, dims = [] : (tensor<f32>) -> tensor<8x8x1xf32>
    %647 = stablehlo.divide %645, %646 : tensor<8x8x1xf32>
    %648 = stablehlo.broadcast_in_dim %642, dims = [0, 1, 2] : (tensor<8x8x1xf32>) -> tensor<8x8x16xf32>
    %649 = stablehlo.subtract %638, %648 : tensor<8x8x16xf32>
    %650 = stablehlo.broadcast_in_dim %647, dims = [0, 1, 2] : (tensor<8x8x1xf32>) -> tensor<8x8x16xf32>
    %651 = stablehlo.multiply %635, %650 : tensor<8x8x16xf32>
    %652 = stablehlo.subtract %649, %651 : tensor<8x8x16xf32>
    %653 = stablehlo.broadcast_in_dim %165, dims = [0, 1, 2] : (tensor<8x8x1xf32>) -> tensor<8x8x16xf32>
    %654 = stablehlo.multiply %653, %652 : tensor<8x8x16xf32>
    %655 = stablehlo.multiply %622, %635 : tensor<8x8x16xf32>
    %cst_86 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %656 = stablehlo.reduce(%655 init: %cst_86) applies stablehlo.add across dimensions = [0, 1] : (tensor<8x8x16xf32>, tensor<f32>) -> tensor<16xf32>
    %cst_87 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %657 = stablehlo.reduce(%622 init: %cst_87) applies stablehlo.add across dimensions = [0, 1] : (tensor<8x8x16xf32>, tensor<f32>) -> tensor<16xf32>
    %658 = stablehlo.add %558, %654 : tensor<8x8x16xf32>
    %659 = sdy.sharding_constraint %656 <@mesh, [{}]> : tensor<16xf32>
    %660 = sdy.sharding_constraint %659 <@mesh, [{"fsdp"}]> : tensor<16xf32>
    %661 = stablehlo.optimization_barrier %660 : tensor<16xf32>
    %662 = sdy.sharding_constraint %657 <@mesh, [{}]> : tensor<16xf32>
    %663 = sdy.sharding_constraint %662 <@mesh, [{"fsdp"}]> : tensor<16xf32>
    %664 = stablehlo.optimization_barrier %663 : tensor<16xf32>
    %cst_88 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %665 = stablehlo.reduce(%658 init: %cst_88) applies stablehlo.add across dimensions = [0] : (tensor<8x8x16xf32>, tensor<f32>) -> tensor<8x16xf32>
    %666 = stablehlo.broadcast_in_dim %665, dims = [1, 2] : (tensor<8x16xf32>) -> tensor<1x8x16xf32>
    %667 = stablehlo.reshape %666 : (tensor<1x8x16xf32>) -> tensor<8x16xf32>
    %cst_89 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %668 = stablehlo.broadcast_in_dim %cst_89, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %669 = stablehlo.convert %4 : (tensor<8xi64>) -> tensor<8xi32>
    %670 = stablehlo.broadcast_in_dim %669, dims = [0] : (tensor<8xi32>) -> tensor<8x1xi32>
    %671 = "stablehlo.scatter"(%668, %670, %667) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>, unique_indices = false}> ({
    ^bb0(%arg55: tensor<f32>, %arg56: tensor<f32>):
      %1413 = stablehlo.add %arg55, %arg56 : tensor<f32>
      stablehlo.return %1413 : tensor<f32>
    }) : (tensor<8x16xf32>, tensor<8x1xi32>, tensor<8x16xf32>) -> tensor<8x16xf32>
    %672 = sdy.sharding_constraint %671 <@mesh, [{}, {}]> : tensor<8x16xf32>
    %673 = sdy.sharding_constraint %672 <@mesh, [{}, {"fsdp"}]> : tensor<8x16xf32>
    %674 = stablehlo.optimization_barrier %673 : tensor<8x16xf32>
    %675 = stablehlo.reshape %arg5 : (tensor<8x8xi64>) -> tensor<64xi64>
    %676 = stablehlo.reshape %658 : (tensor<8x8x16xf32>) -> tensor<64x16xf32>
    %cst_90 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %677 = stablehlo.broadcast_in_dim %cst_90, dims = [] : (tensor<f32>) -> tensor<32x16xf32>
    %678 = stablehlo.convert %675 : (tensor<64xi64>) -> tensor<64xi32>
    %679 = stablehlo.broadcast_in_dim %678, dims = [0] : (tensor<64xi32>) -> tensor<64x1xi32>
    %680 = "stablehlo.scatter"(%677, %679, %676) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>, unique_indices = false}> ({
    ^bb0(%arg55: tensor<f32>, %arg56: tensor<f32>):
      %1413 = stablehlo.add %arg55, %arg56 : tensor<f32>
      stablehlo.return %1413 : tensor<f32>
    }) : (tensor<32x16xf32>, tensor<64x1xi32>, tensor<64x16xf32>) -> tensor<32x16xf32>
    %681 = sdy.sharding_constraint %680 <@mesh, [{}, {}]> : tensor<32x16xf32>
    %682 = sdy.sharding_constraint %681 <@mesh, [{"fsdp"}, {}]> : tensor<32x16xf32>
    %683 = stablehlo.optimization_barrier %682 : tensor<32x16xf32>
    %684 = stablehlo.reshape %683 : (tensor<32x16xf32>) -> tensor<8x4x16xf32>
    %685 = stablehlo.reshape %684 : (tensor<8x4x16xf32>) -> tensor<8x64xf32>
    %686 = sdy.sharding_constraint %685 <@mesh, [{"fsdp"}, {}]> : tensor<8x64xf32>
    %687 = chlo.square %686 : tensor<8x64xf32> -> tensor<8x64xf32>
    %cst_91 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %688 = stablehlo.reduce(%687 init: %cst_91) applies stablehlo.add across dimensions = [1] : (tensor<8x64xf32>, tensor<f32>) -> tensor<8xf32>
    %689 = stablehlo.broadcast_in_dim %688, dims = [0] : (tensor<8xf32>) -> tensor<8x1xf32>
    %690 = stablehlo.transpose %674, dims = [1, 0] : (tensor<8x16xf32>) -> tensor<16x8xf32>
    %691 = stablehlo.reshape %690 : (tensor<16x8xf32>) -> tensor<8x2x8xf32>
    %692 = stablehlo.reshape %691 : (tensor<8x2x8xf32>) -> tensor<8x16xf32>
    %693 = sdy.sharding_constraint %692 <@mesh, [{"fsdp"}, {}]> : tensor<8x16xf32>
    %694 = chlo.square %693 : tensor<8x16xf32> -> tensor<8x16xf32>
    %cst_92 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %695 = stablehlo.reduce(%694 init: %cst_92) applies stablehlo.add across dimensions = [1] : (tensor<8x16xf32>, tensor<f32>) -> tensor<8xf32>
    %696 = stablehlo.broadcast_in_dim %695, dims = [0] : (tensor<8xf32>) -> tensor<8x1xf32>
    %697 = stablehlo.reshape %661 : (tensor<16xf32>) -> tensor<16x1xf32>
    %698 = stablehlo.reshape %697 : (tensor<16x1xf32>) -> tensor<8x2x1xf32>
    %699 = stablehlo.reshape %698 : (tensor<8x2x1xf32>) -> tensor<8x2xf32>
    %700 = sdy.sharding_constraint %699 <@mesh, [{"fsdp"}, {}]> : tensor<8x2xf32>
    %701 = chlo.square %700 : tensor<8x2xf32> -> tensor<8x2xf32>
    %cst_93 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %702 = stablehlo.reduce(%701 init: %cst_93) applies stablehlo.add across dimensions = [1] : (tensor<8x2xf32>, tensor<f32>) -> tensor<8xf32>
    %703 = stablehlo.broadcast_in_dim %702, dims = [0] : (tensor<8xf32>) -> tensor<8x1xf32>
    %704 = stablehlo.reshape %664 : (tensor<16xf32>) -> tensor<16x1xf32>
    %705 = stablehlo.reshape %704 : (tensor<16x1xf32>) -> tensor<8x2x1xf32>
    %706 = stablehlo.reshape %705 : (tensor<8x2x1xf32>) -> tensor<8x2xf32>
    %707 = sdy.sharding_constraint %706 <@mesh, [{"fsdp"}, {}]> : tensor<8x2xf32>
    %708 = chlo.square %707 : tensor<8x2xf32> -> tensor<8x2xf32>
    %cst_94 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %709 = stablehlo.reduce(%708 init: %cst_94) applies stablehlo.add across dimensions = [1] : (tensor<8x2xf32>, tensor<f32>) -> tensor<8xf32>
    %710 = stablehlo.broadcast_in_dim %709, dims = [0] : (tensor<8xf32>) -> tensor<8x1xf32>
    %711 = stablehlo.reshape %628 : (tensor<48x16xf32>) -> tensor<8x6x16xf32>
    %712 = stablehlo.reshape %711 : (tensor<8x6x16xf32>) -> tensor<8x96xf32>
    %713 = sdy.sharding_constraint %712 <@mesh, [{"fsdp"}, {}]> : tensor<8x96xf32>
    %714 = chlo.square %713 : tensor<8x96xf32> -> tensor<8x96xf32>
    %cst_95 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %715 = stablehlo.reduce(%714 init: %cst_95) applies stablehlo.add across dimensions = [1] : (tensor<8x96xf32>, tensor<f32>) -> tensor<8xf32>
    %716 = stablehlo.broadcast_in_dim %715, dims = [0] : (tensor<8xf32>) -> tensor<8x1xf32>
    %717 = stablehlo.reshape %631 : (tensor<48xf32>) -> tensor<48x1xf32>
    %718 = stablehlo.reshape %717 : (tensor<48x1xf32>) -> tensor<8x6x1xf32>
    %719 = stablehlo.reshape %718 : (tensor<8x6x1xf32>) -> tensor<8x6xf32>
    %720 = sdy.sharding_constraint %719 <@mesh, [{"fsdp"}, {}]> : tensor<8x6xf32>
    %721 = chlo.square %720 : tensor<8x6xf32> -> tensor<8x6xf32>
    %cst_96 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %722 = stablehlo.reduce(%721 init: %cst_96) applies stablehlo.add across dimensions = [1] : (tensor<8x6xf32>, tensor<f32>) -> tensor<8xf32>
    %723 = stablehlo.broadcast_in_dim %722, dims = [0] : (tensor<8xf32>) -> tensor<8x1xf32>
    %724 = stablehlo.reshape %573 : (tensor<16x16xf32>) -> tensor<8x2x16xf32>
    %725 = stablehlo.reshape %724 : (tensor<8x2x16xf32>) -> tensor<8x32xf32>
    %726 = sdy.sharding_constraint %725 <@mesh, [{"fsdp"}, {}]> : tensor<8x32xf32>
    %727 = chlo.square %726 : tensor<8x32xf32> -> tensor<8x32xf32>
    %cst_97 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %728 = stablehlo.reduce(%727 init: %cst_97) applies stablehlo.add across dimensions = [1] : (tensor<8x32xf32>, tensor<f32>) -> tensor<8xf32>
    %729 = stablehlo.broadcast_in_dim %728, dims = [0] : (tensor<8xf32>) -> tensor<8x1xf32>
    %730 = stablehlo.reshape %576 : (tensor<16xf32>) -> tensor<16x1xf32>
    %731 = stablehlo.reshape %730 : (tensor<16x1xf32>) -> tensor<8x2x1xf32>
    %732 = stablehlo.reshape %731 : (tensor<8x2x1xf32>) -> tensor<8x2xf32>
    %733 = sdy.sharding_constraint %732 <@mesh, [{"fsdp"}, {}]> : tensor<8x2xf32>
    %734 = chlo.square %733 : tensor<8x2xf32> -> tensor<8x2xf32>
    %cst_98 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %735 = stablehlo.reduce(%734 init: %cst_98) applies stablehlo.add across dimensions = [1] : (tensor<8x2xf32>, tensor<f32>) -> tensor<8xf32>
    %736 = stablehlo.broadcast_in_dim %735, dims = [0] : (tensor<8xf32>) -> tensor<8x1xf32>
    %737 = stablehlo.reshape %561 : (tensor<16xf32>) -> tensor<16x1xf32>
    %738 = stablehlo.reshape %737 : (tensor<16x1xf32>) -> tensor<8x2x1xf32>
    %739 = stablehlo.reshape %738 : (tensor<8x2x1xf32>) -> tensor<8x2xf32>
    %740 = sdy.sharding_constraint %739 <@mesh, [{"fsdp"}, {}]> : tensor<8x2xf32>
    %741 = chlo.square %740 : tensor<8x2xf32> -> tensor<8x2xf32>
    %cst_99 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %742 = stablehlo.reduce(%741 init: %cst_99) applies stablehlo.add across dimensions = [1] : (tensor<8x2xf32>, tensor<f32>) -> tensor<8xf32>
    %743 = stablehlo.broadcast_in_dim %742, dims = [0] : (tensor<8xf32>) -> tensor<8x1xf32>
    %744 = stablehlo.reshape %564 : (tensor<16xf32>) -> tensor<16x1xf32>
    %745 = stablehlo.reshape %744 : (tensor<16x1xf32>) -> tensor<8x2x1xf32>
    %746 = stablehlo.reshape %745 : (tensor<8x2x1xf32>) -> tensor<8x2xf32>
    %747 = sdy.sharding_constraint %746 <@mesh, [{"fsdp"}, {}]> : tensor<8x2xf32>
    %748 = chlo.square %747 : tensor<8x2xf32> -> tensor<8x2xf32>
    %cst_100 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %749 = stablehlo.reduce(%748 init: %cst_100) applies stablehlo.add across dimensions = [1] : (tensor<8x2xf32>, tensor<f32>) -> tensor<8xf32>
    %750 = stablehlo.broadcast_in_dim %749, dims = [0] : (tensor<8xf32>) -> tensor<8x1xf32>
    %751 = stablehlo.reshape %528 : (tensor<64x16xf32>) -> tensor<8x8x16xf32>
    %752 = stablehlo.reshape %751 : (tensor<8x8x16xf32>) -> tensor<8x128xf32>
    %753 = sdy.sharding_constraint %752 <@mesh, [{"fsdp"}, {}]> : tensor<8x128xf32>
    %754 = chlo.square %753 : tensor<8x128xf32> -> tensor<8x128xf32>
    %cst_101 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %755 = stablehlo.reduce(%754 init: %cst_101) applies stablehlo.add across dimensions = [1] : (tensor<8x128xf32>, tensor<f32>) -> tensor<8xf32>
    %756 = stablehlo.broadcast_in_dim %755, dims = [0] : (tensor<8xf32>) -> tensor<8x1xf32>
    %757 = stablehlo.reshape %531 : (tensor<64xf32>) -> tensor<64x1xf32>
    %758 = stablehlo.reshape %757 : (tensor<64x1xf32>) -> tensor<8x8x1xf32>
    %759 = stablehlo.reshape %758 : (tensor<8x8x1xf32>) -> tensor<8x8xf32>
    %760 = sdy.sharding_constraint %759 <@mesh, [{"fsdp"}, {}]> : tensor<8x8xf32>
    %761 = chlo.square %760 : tensor<8x8xf32> -> tensor<8x8xf32>
    %cst_102 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %762 = stablehlo.reduce(%761 init: %cst_102) applies stablehlo.add across dimensions = [1] : (tensor<8x8xf32>, tensor<f32>) -> tensor<8xf32>
    %763 = stablehlo.broadcast_in_dim %762, dims = [0] : (tensor<8xf32>) -> tensor<8x1xf32>
    %764 = stablehlo.transpose %489, dims = [1, 0] : (tensor<16x64xf32>) -> tensor<64x16xf32>
    %765 = stablehlo.reshape %764 : (tensor<64x16xf32>) -> tensor<8x8x16xf32>
    %766 = stablehlo.reshape %765 : (tensor<8x8x16xf32>) -> tensor<8x128xf32>
    %767 = sdy.sharding_constraint %766 <@mesh, [{"fsdp"}, {}]> : tensor<8x128xf32>
    %768 = chlo.square %767 : tensor<8x128xf32> -> tensor<8x128xf32>
    %cst_103 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %769 = stablehlo.reduce(%768 init: %cst_103) applies stablehlo.add across dimensions = [1] : (tensor<8x128xf32>, tensor<f32>) -> tensor<8xf32>
    %770 = stablehlo.broadcast_in_dim %769, dims = [0] : (tensor<8xf32>) -> tensor<8x1xf32>
    %771 = stablehlo.reshape %492 : (tensor<16xf32>) -> tensor<16x1xf32>
    %772 = stablehlo.reshape %771 : (tensor<16x1xf32>) -> tensor<8x2x1xf32>
    %773 = stablehlo.reshape %772 : (tensor<8x2x1xf32>) -> tensor<8x2xf32>
    %774 = sdy.sharding_constraint %773 <@mesh, [{"fsdp"}, {}]> : tensor<8x2xf32>
    %775 = chlo.square %774 : tensor<8x2xf32> -> tensor<8x2xf32>
    %cst_104 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %776 = stablehlo.reduce(%775 init: %cst_104) applies stablehlo.add across dimensions = [1] : (tensor<8x2xf32>, tensor<f32>) -> tensor<8xf32>
    %777 = stablehlo.broadcast_in_dim %776, dims = [0] : (tensor<8xf32>) -> tensor<8x1xf32>
    %778 = stablehlo.reshape %391 : (tensor<16xf32>) -> tensor<16x1xf32>
    %779 = stablehlo.reshape %778 : (tensor<16x1xf32>) -> tensor<8x2x1xf32>
    %780 = stablehlo.reshape %779 : (tensor<8x2x1xf32>) -> tensor<8x2xf32>
    %781 = sdy.sharding_constraint %780 <@mesh, [{"fsdp"}, {}]> : tensor<8x2xf32>
    %782 = chlo.square %781 : tensor<8x2xf32> -> tensor<8x2xf32>
    %cst_105 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %783 = stablehlo.reduce(%782 init: %cst_105) applies stablehlo.add across dimensions = [1] : (tensor<8x2xf32>, tensor<f32>) -> tensor<8xf32>
    %784 = stablehlo.broadcast_in_dim %783, dims = [0] : (tensor<8xf32>) -> tensor<8x1xf32>
    %785 = stablehlo.reshape %394 : (tensor<16xf32>) -> tensor<16x1xf32>
    %786 = stablehlo.reshape %785 : (tensor<16x1xf32>) -> tensor<8x2x1xf32>
    %787 = stablehlo.reshape %786 : (tensor<8x2x1xf32>) -> tensor<8x2xf32>
    %788 = sdy.sharding_constraint %787 <@mesh, [{"fsdp"}, {}]> : tensor<8x2xf32>
    %789 = chlo.square %788 : tensor<8x2xf32> -> tensor<8x2xf32>
    %cst_106 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %790 = stablehlo.reduce(%789 init: %cst_106) applies stablehlo.add across dimensions = [1] : (tensor<8x2xf32>, tensor<f32>) -> tensor<8xf32>
    %791 = stablehlo.broadcast_in_dim %790, dims = [0] : (tensor<8xf32>) -> tensor<8x1xf32>
    %792 = stablehlo.reshape %362 : (tensor<32x16xf32>) -> tensor<8x4x16xf32>
    %793 = stablehlo.reshape %792 : (tensor<8x4x16xf32>) -> tensor<8x64xf32>
    %794 = sdy.sharding_constraint %793 <@mesh, [{"fsdp"}, {}]> : tensor<8x64xf32>
    %795 = chlo.square %794 : tensor<8x64xf32> -> tensor<8x64xf32>
    %cst_107 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %796 = stablehlo.reduce(%795 init: %cst_107) applies stablehlo.add across dimensions = [1] : (tensor<8x64xf32>, tensor<f32>) -> tensor<8xf32>
    %797 = stablehlo.broadcast_in_dim %796, dims = [0] : (tensor<8xf32>) -> tensor<8x1xf32>
    %798 = stablehlo.concatenate %689, %696, %703, %710, %716, %723, %729, %736, %743, %750, %756, %763, %770, %777, %784, %791, dim = 1 : (tensor<8x1xf32>, tensor<8x1xf32>, tensor<8x1xf32>, tensor<8x1xf32>, tensor<8x1xf32>, tensor<8x1xf32>, tensor<8x1xf32>, tensor<8x1xf32>, tensor<8x1xf32>, tensor<8x1xf32>, tensor<8x1xf32>, tensor<8x1xf32>, tensor<8x1xf32>, tensor<8x1xf32>, tensor<8x1xf32>, tensor<8x1xf32>) -> tensor<8x16xf32>
    %799 = stablehlo.concatenate %797, dim = 1 : (tensor<8x1xf32>) -> tensor<8x1xf32>
    %800 = stablehlo.concatenate %798, %799, dim = 1 : (tensor<8x16xf32>, tensor<8x1xf32>) -> tensor<8x17xf32>
    %801 = sdy.sharding_constraint %800 <@mesh, [{"fsdp"}, {}]> : tensor<8x17xf32>
    %cst_108 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %802 = stablehlo.reduce(%801 init: %cst_108) applies stablehlo.add across dimensions = [0] : (tensor<8x17xf32>, tensor<f32>) -> tensor<17xf32>
    %803 = stablehlo.sqrt %802 : tensor<17xf32>
    %804 = stablehlo.abs %803 : tensor<17xf32>
    %805 = stablehlo.multiply %804, %804 : tensor<17xf32>
    %cst_109 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %806 = stablehlo.reduce(%805 init: %cst_109) applies stablehlo.add across dimensions = [0] : (tensor<17xf32>, tensor<f32>) -> tensor<f32>
    %807 = stablehlo.sqrt %806 : tensor<f32>
    %808 = stablehlo.slice %arg53 [0:1] : (tensor<10xf64>) -> tensor<1xf64>
    %809 = stablehlo.reshape %808 : (tensor<1xf64>) -> tensor<f64>
    %810 = stablehlo.convert %809 : (tensor<f64>) -> tensor<f32>
    %811 = stablehlo.add %807, %810 : tensor<f32>
    %cst_110 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %812 = stablehlo.divide %cst_110, %811 : tensor<f32>
    %813 = stablehlo.slice %arg53 [1:2] : (tensor<10xf64>) -> tensor<1xf64>
    %814 = stablehlo.reshape %813 : (tensor<1xf64>) -> tensor<f64>
    %815 = stablehlo.convert %814 : (tensor<f64>) -> tensor<f32>
    %816 = stablehlo.multiply %812, %815 : tensor<f32>
    %817 = stablehlo.slice %arg53 [2:3] : (tensor<10xf64>) -> tensor<1xf64>
    %818 = stablehlo.reshape %817 : (tensor<1xf64>) -> tensor<f64>
    %819 = stablehlo.convert %818 : (tensor<f64>) -> tensor<f32>
    %820 = stablehlo.minimum %816, %819 : tensor<f32>
    %821 = stablehlo.broadcast_in_dim %820, dims = [] : (tensor<f32>) -> tensor<32x16xf32>
    %822 = stablehlo.multiply %683, %821 : tensor<32x16xf32>
    %823 = stablehlo.broadcast_in_dim %820, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %824 = stablehlo.multiply %674, %823 : tensor<8x16xf32>
    %825 = stablehlo.broadcast_in_dim %820, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %826 = stablehlo.multiply %661, %825 : tensor<16xf32>
    %827 = stablehlo.broadcast_in_dim %820, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %828 = stablehlo.multiply %664, %827 : tensor<16xf32>
    %829 = stablehlo.broadcast_in_dim %820, dims = [] : (tensor<f32>) -> tensor<48x16xf32>
    %830 = stablehlo.multiply %628, %829 : tensor<48x16xf32>
    %831 = stablehlo.broadcast_in_dim %820, dims = [] : (tensor<f32>) -> tensor<48xf32>
    %832 = stablehlo.multiply %631, %831 : tensor<48xf32>
    %833 = stablehlo.broadcast_in_dim %820, dims = [] : (tensor<f32>) -> tensor<16x16xf32>
    %834 = stablehlo.multiply %573, %833 : tensor<16x16xf32>
    %835 = stablehlo.broadcast_in_dim %820, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %836 = stablehlo.multiply %576, %835 : tensor<16xf32>
    %837 = stablehlo.broadcast_in_dim %820, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %838 = stablehlo.multiply %561, %837 : tensor<16xf32>
    %839 = stablehlo.broadcast_in_dim %820, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %840 = stablehlo.multiply %564, %839 : tensor<16xf32>
    %841 = stablehlo.broadcast_in_dim %820, dims = [] : (tensor<f32>) -> tensor<64x16xf32>
    %842 = stablehlo.multiply %528, %841 : tensor<64x16xf32>
    %843 = stablehlo.broadcast_in_dim %820, dims = [] : (tensor<f32>) -> tensor<64xf32>
    %844 = stablehlo.multiply %531, %843 : tensor<64xf32>
    %845 = stablehlo.broadcast_in_dim %820, dims = [] : (tensor<f32>) -> tensor<16x64xf32>
    %846 = stablehlo.multiply %489, %845 : tensor<16x64xf32>
    %847 = stablehlo.broadcast_in_dim %820, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %848 = stablehlo.multiply %492, %847 : tensor<16xf32>
    %849 = stablehlo.broadcast_in_dim %820, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %850 = stablehlo.multiply %391, %849 : tensor<16xf32>
    %851 = stablehlo.broadcast_in_dim %820, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %852 = stablehlo.multiply %394, %851 : tensor<16xf32>
    %853 = stablehlo.broadcast_in_dim %820, dims = [] : (tensor<f32>) -> tensor<32x16xf32>
    %854 = stablehlo.multiply %362, %853 : tensor<32x16xf32>
    %855 = stablehlo.slice %arg53 [3:4] : (tensor<10xf64>) -> tensor<1xf64>
    %856 = stablehlo.reshape %855 : (tensor<1xf64>) -> tensor<f64>
    %857 = stablehlo.convert %856 : (tensor<f64>) -> tensor<f32>
    %858 = stablehlo.broadcast_in_dim %857, dims = [] : (tensor<f32>) -> tensor<32x16xf32>
    %859 = stablehlo.multiply %arg0, %858 : tensor<32x16xf32>
    %860 = stablehlo.convert %856 : (tensor<f64>) -> tensor<f32>
    %861 = stablehlo.broadcast_in_dim %860, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %862 = stablehlo.multiply %arg1, %861 : tensor<8x16xf32>
    %863 = stablehlo.convert %856 : (tensor<f64>) -> tensor<f32>
    %864 = stablehlo.broadcast_in_dim %863, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %865 = stablehlo.multiply %arg6, %864 : tensor<16xf32>
    %866 = stablehlo.convert %856 : (tensor<f64>) -> tensor<f32>
    %867 = stablehlo.broadcast_in_dim %866, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %868 = stablehlo.multiply %arg7, %867 : tensor<16xf32>
    %869 = stablehlo.convert %856 : (tensor<f64>) -> tensor<f32>
    %870 = stablehlo.broadcast_in_dim %869, dims = [] : (tensor<f32>) -> tensor<48x16xf32>
    %871 = stablehlo.multiply %arg8, %870 : tensor<48x16xf32>
    %872 = stablehlo.convert %856 : (tensor<f64>) -> tensor<f32>
    %873 = stablehlo.broadcast_in_dim %872, dims = [] : (tensor<f32>) -> tensor<48xf32>
    %874 = stablehlo.multiply %arg9, %873 : tensor<48xf32>
    %875 = stablehlo.convert %856 : (tensor<f64>) -> tensor<f32>
    %876 = stablehlo.broadcast_in_dim %875, dims = [] : (tensor<f32>) -> tensor<16x16xf32>
    %877 = stablehlo.multiply %arg10, %876 : tensor<16x16xf32>
    %878 = stablehlo.convert %856 : (tensor<f64>) -> tensor<f32>
    %879 = stablehlo.broadcast_in_dim %878, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %880 = stablehlo.multiply %arg11, %879 : tensor<16xf32>
    %881 = stablehlo.convert %856 : (tensor<f64>) -> tensor<f32>
    %882 = stablehlo.broadcast_in_dim %881, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %883 = stablehlo.multiply %arg12, %882 : tensor<16xf32>
    %884 = stablehlo.convert %856 : (tensor<f64>) -> tensor<f32>
    %885 = stablehlo.broadcast_in_dim %884, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %886 = stablehlo.multiply %arg13, %885 : tensor<16xf32>
    %887 = stablehlo.convert %856 : (tensor<f64>) -> tensor<f32>
    %888 = stablehlo.broadcast_in_dim %887, dims = [] : (tensor<f32>) -> tensor<64x16xf32>
    %889 = stablehlo.multiply %arg14, %888 : tensor<64x16xf32>
    %890 = stablehlo.convert %856 : (tensor<f64>) -> tensor<f32>
    %891 = stablehlo.broadcast_in_dim %890, dims = [] : (tensor<f32>) -> tensor<64xf32>
    %892 = stablehlo.multiply %arg15, %891 : tensor<64xf32>
    %893 = stablehlo.convert %856 : (tensor<f64>) -> tensor<f32>
    %894 = stablehlo.broadcast_in_dim %893, dims = [] : (tensor<f32>) -> tensor<16x64xf32>
    %895 = stablehlo.multiply %arg16, %894 : tensor<16x64xf32>
    %896 = stablehlo.convert %856 : (tensor<f64>) -> tensor<f32>
    %897 = stablehlo.broadcast_in_dim %896, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %898 = stablehlo.multiply %arg17, %897 : tensor<16xf32>
    %899 = stablehlo.convert %856 : (tensor<f64>) -> tensor<f32>
    %900 = stablehlo.broadcast_in_dim %899, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %901 = stablehlo.multiply %arg2, %900 : tensor<16xf32>
    %902 = stablehlo.convert %856 : (tensor<f64>) -> tensor<f32>
    %903 = stablehlo.broadcast_in_dim %902, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %904 = stablehlo.multiply %arg3, %903 : tensor<16xf32>
    %905 = stablehlo.convert %856 : (tensor<f64>) -> tensor<f32>
    %906 = stablehlo.broadcast_in_dim %905, dims = [] : (tensor<f32>) -> tensor<32x16xf32>
    %907 = stablehlo.multiply %arg4, %906 : tensor<32x16xf32>
    %908 = stablehlo.slice %arg53 [4:5] : (tensor<10xf64>) -> tensor<1xf64>
    %909 = stablehlo.reshape %908 : (tensor<1xf64>) -> tensor<f64>
    %910 = stablehlo.convert %909 : (tensor<f64>) -> tensor<f32>
    %cst_111 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %911 = stablehlo.compare LT, %910, %cst_111, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %912 = call @_where_9(%911, %arg19, %822) : (tensor<i1>, tensor<32x16xf32>, tensor<32x16xf32>) -> tensor<32x16xf32>
    %cst_112 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %913 = stablehlo.subtract %910, %cst_112 : tensor<f32>
    %914 = call @_where_10(%911, %910, %913) : (tensor<i1>, tensor<f32>, tensor<f32>) -> tensor<f32>
    %915 = stablehlo.subtract %822, %arg19 : tensor<32x16xf32>
    %916 = stablehlo.broadcast_in_dim %914, dims = [] : (tensor<f32>) -> tensor<32x16xf32>
    %917 = stablehlo.multiply %916, %915 : tensor<32x16xf32>
    %918 = stablehlo.add %912, %917 : tensor<32x16xf32>
    %919 = stablehlo.convert %909 : (tensor<f64>) -> tensor<f32>
    %cst_113 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %920 = stablehlo.compare LT, %919, %cst_113, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %921 = call @_where_11(%920, %arg20, %824) : (tensor<i1>, tensor<8x16xf32>, tensor<8x16xf32>) -> tensor<8x16xf32>
    %cst_114 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %922 = stablehlo.subtract %919, %cst_114 : tensor<f32>
    %923 = call @_where_10(%920, %919, %922) : (tensor<i1>, tensor<f32>, tensor<f32>) -> tensor<f32>
    %924 = stablehlo.subtract %824, %arg20 : tensor<8x16xf32>
    %925 = stablehlo.broadcast_in_dim %923, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %926 = stablehlo.multiply %925, %924 : tensor<8x16xf32>
    %927 = stablehlo.add %921, %926 : tensor<8x16xf32>
    %928 = stablehlo.convert %909 : (tensor<f64>) -> tensor<f32>
    %cst_115 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %929 = stablehlo.compare LT, %928, %cst_115, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %930 = call @_where_12(%929, %arg21, %826) : (tensor<i1>, tensor<16xf32>, tensor<16xf32>) -> tensor<16xf32>
    %cst_116 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %931 = stablehlo.subtract %928, %cst_116 : tensor<f32>
    %932 = call @_where_10(%929, %928, %931) : (tensor<i1>, tensor<f32>, tensor<f32>) -> tensor<f32>
    %933 = stablehlo.subtract %826, %arg21 : tensor<16xf32>
    %934 = stablehlo.broadcast_in_dim %932, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %935 = stablehlo.multiply %934, %933 : tensor<16xf32>
    %936 = stablehlo.add %930, %935 : tensor<16xf32>
    %937 = stablehlo.convert %909 : (tensor<f64>) -> tensor<f32>
    %cst_117 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %938 = stablehlo.compare LT, %937, %cst_117, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %939 = call @_where_12(%938, %arg22, %828) : (tensor<i1>, tensor<16xf32>, tensor<16xf32>) -> tensor<16xf32>
    %cst_118 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %940 = stablehlo.subtract %937, %cst_118 : tensor<f32>
    %941 = call @_where_10(%938, %937, %940) : (tensor<i1>, tensor<f32>, tensor<f32>) -> tensor<f32>
    %942 = stablehlo.subtract %828, %arg22 : tensor<16xf32>
    %943 = stablehlo.broadcast_in_dim %941, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %944 = stablehlo.multiply %943, %942 : tensor<16xf32>
    %945 = stablehlo.add %939, %944 : tensor<16xf32>
    %946 = stablehlo.convert %909 : (tensor<f64>) -> tensor<f32>
    %cst_119 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %947 = stablehlo.compare LT, %946, %cst_119, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %948 = call @_where_13(%947, %arg23, %830) : (tensor<i1>, tensor<48x16xf32>, tensor<48x16xf32>) -> tensor<48x16xf32>
    %cst_120 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %949 = stablehlo.subtract %946, %cst_120 : tensor<f32>
    %950 = call @_where_10(%947, %946, %949) : (tensor<i1>, tensor<f32>, tensor<f32>) -> tensor<f32>
    %951 = stablehlo.subtract %830, %arg23 : tensor<48x16xf32>
    %952 = stablehlo.broadcast_in_dim %950, dims = [] : (tensor<f32>) -> tensor<48x16xf32>
    %953 = stablehlo.multiply %952, %951 : tensor<48x16xf32>
    %954 = stablehlo.add %948, %953 : tensor<48x16xf32>
    %955 = stablehlo.convert %909 : (tensor<f64>) -> tensor<f32>
    %cst_121 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %956 = stablehlo.compare LT, %955, %cst_121, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %957 = call @_where_14(%956, %arg24, %832) : (tensor<i1>, tensor<48xf32>, tensor<48xf32>) -> tensor<48xf32>
    %cst_122 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %958 = stablehlo.subtract %955, %cst_122 : tensor<f32>
    %959 = call @_where_10(%956, %955, %958) : (tensor<i1>, tensor<f32>, tensor<f32>) -> tensor<f32>
    %960 = stablehlo.subtract %832, %arg24 : tensor<48xf32>
    %961 = stablehlo.broadcast_in_dim %959, dims = [] : (tensor<f32>) -> tensor<48xf32>
    %962 = stablehlo.multiply %961, %960 : tensor<48xf32>
    %963 = stablehlo.add %957, %962 : tensor<48xf32>
    %964 = stablehlo.convert %909 : (tensor<f64>) -> tensor<f32>
    %cst_123 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %965 = stablehlo.compare LT, %964, %cst_123, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %966 = call @_where_15(%965, %arg25, %834) : (tensor<i1>, tensor<16x16xf32>, tensor<16x16xf32>) -> tensor<16x16xf32>
    %cst_124 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %967 = stablehlo.subtract %964, %cst_124 : tensor<f32>
    %968 = call @_where_10(%965, %964, %967) : (tensor<i1>, tensor<f32>, tensor<f32>) -> tensor<f32>
    %969 = stablehlo.subtract %834, %arg25 : tensor<16x16xf32>
    %970 = stablehlo.broadcast_in_dim %968, dims = [] : (tensor<f32>) -> tensor<16x16xf32>
    %971 = stablehlo.multiply %970, %969 : tensor<16x16xf32>
    %972 = stablehlo.add %966, %971 : tensor<16x16xf32>
    %973 = stablehlo.convert %909 : (tensor<f64>) -> tensor<f32>
    %cst_125 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %974 = stablehlo.compare LT, %973, %cst_125, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %975 = call @_where_12(%974, %arg26, %836) : (tensor<i1>, tensor<16xf32>, tensor<16xf32>) -> tensor<16xf32>
    %cst_126 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %976 = stablehlo.subtract %973, %cst_126 : tensor<f32>
    %977 = call @_where_10(%974, %973, %976) : (tensor<i1>, tensor<f32>, tensor<f32>) -> tensor<f32>
    %978 = stablehlo.subtract %836, %arg26 : tensor<16xf32>
    %979 = stablehlo.broadcast_in_dim %977, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %980 = stablehlo.multiply %979, %978 : tensor<16xf32>
    %981 = stablehlo.add %975, %980 : tensor<16xf32>
    %982 = stablehlo.convert %909 : (tensor<f64>) -> tensor<f32>
    %cst_127 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %983 = stablehlo.compare LT, %982, %cst_127, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %984 = call @_where_12(%983, %arg27, %838) : (tensor<i1>, tensor<16xf32>, tensor<16xf32>) -> tensor<16xf32>
    %cst_128 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %985 = stablehlo.subtract %982, %cst_128 : tensor<f32>
    %986 = call @_where_10(%983, %982, %985) : (tensor<i1>, tensor<f32>, tensor<f32>) -> tensor<f32>
    %987 = stablehlo.subtract %838, %arg27 : tensor<16xf32>
    %988 = stablehlo.broadcast_in_dim %986, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %989 = stablehlo.multiply %988, %987 : tensor<16xf32>
    %990 = stablehlo.add %984, %989 : tensor<16xf32>
    %991 = stablehlo.convert %909 : (tensor<f64>) -> tensor<f32>
    %cst_129 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %992 = stablehlo.compare LT, %991, %cst_129, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %993 = call @_where_12(%992, %arg28, %840) : (tensor<i1>, tensor<16xf32>, tensor<16xf32>) -> tensor<16xf32>
    %cst_130 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %994 = stablehlo.subtract %991, %cst_130 : tensor<f32>
    %995 = call @_where_10(%992, %991, %994) : (tensor<i1>, tensor<f32>, tensor<f32>) -> tensor<f32>
    %996 = stablehlo.subtract %840, %arg28 : tensor<16xf32>
    %997 = stablehlo.broadcast_in_dim %995, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %998 = stablehlo.multiply %997, %996 : tensor<16xf32>
    %999 = stablehlo.add %993, %998 : tensor<16xf32>
    %1000 = stablehlo.convert %909 : (tensor<f64>) -> tensor<f32>
    %cst_131 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %1001 = stablehlo.compare LT, %1000, %cst_131, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %1002 = call @_where_16(%1001, %arg29, %842) : (tensor<i1>, tensor<64x16xf32>, tensor<64x16xf32>) -> tensor<64x16xf32>
    %cst_132 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %1003 = stablehlo.subtract %1000, %cst_132 : tensor<f32>
    %1004 = call @_where_10(%1001, %1000, %1003) : (tensor<i1>, tensor<f32>, tensor<f32>) -> tensor<f32>
    %1005 = stablehlo.subtract %842, %arg29 : tensor<64x16xf32>
    %1006 = stablehlo.broadcast_in_dim %1004, dims = [] : (tensor<f32>) -> tensor<64x16xf32>
    %1007 = stablehlo.multiply %1006, %1005 : tensor<64x16xf32>
    %1008 = stablehlo.add %1002, %1007 : tensor<64x16xf32>
    %1009 = stablehlo.convert %909 : (tensor<f64>) -> tensor<f32>
    %cst_133 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %1010 = stablehlo.compare LT, %1009, %cst_133, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %1011 = call @_where_17(%1010, %arg30, %844) : (tensor<i1>, tensor<64xf32>, tensor<64xf32>) -> tensor<64xf32>
    %cst_134 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %1012 = stablehlo.subtract %1009, %cst_134 : tensor<f32>
    %1013 = call @_where_10(%1010, %1009, %1012) : (tensor<i1>, tensor<f32>, tensor<f32>) -> tensor<f32>
    %1014 = stablehlo.subtract %844, %arg30 : tensor<64xf32>
    %1015 = stablehlo.broadcast_in_dim %1013, dims = [] : (tensor<f32>) -> tensor<64xf32>
    %1016 = stablehlo.multiply %1015, %1014 : tensor<64xf32>
    %1017 = stablehlo.add %1011, %1016 : tensor<64xf32>
    %1018 = stablehlo.convert %909 : (tensor<f64>) -> tensor<f32>
    %cst_135 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %1019 = stablehlo.compare LT, %1018, %cst_135, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %1020 = call @_where_18(%1019, %arg31, %846) : (tensor<i1>, tensor<16x64xf32>, tensor<16x64xf32>) -> tensor<16x64xf32>
    %cst_136 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %1021 = stablehlo.subtract %1018, %cst_136 : tensor<f32>
    %1022 = call @_where_10(%1019, %1018, %1021) : (tensor<i1>, tensor<f32>, tensor<f32>) -> tensor<f32>
    %1023 = stablehlo.subtract %846, %arg31 : tensor<16x64xf32>
    %1024 = stablehlo.broadcast_in_dim %1022, dims = [] : (tensor<f32>) -> tensor<16x64xf32>
    %1025 = stablehlo.multiply %1024, %1023 : tensor<16x64xf32>
    %1026 = stablehlo.add %1020, %1025 : tensor<16x64xf32>
    %1027 = stablehlo.convert %909 : (tensor<f64>) -> tensor<f32>
    %cst_137 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %1028 = stablehlo.compare LT, %1027, %cst_137, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %1029 = call @_where_12(%1028, %arg32, %848) : (tensor<i1>, tensor<16xf32>, tensor<16xf32>) -> tensor<16xf32>
    %cst_138 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %1030 = stablehlo.subtract %1027, %cst_138 : tensor<f32>
    %1031 = call @_where_10(%1028, %1027, %1030) : (tensor<i1>, tensor<f32>, tensor<f32>) -> tensor<f32>
    %1032 = stablehlo.subtract %848, %arg32 : tensor<16xf32>
    %1033 = stablehlo.broadcast_in_dim %1031, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1034 = stablehlo.multiply %1033, %1032 : tensor<16xf32>
    %1035 = stablehlo.add %1029, %1034 : tensor<16xf32>
    %1036 = stablehlo.convert %909 : (tensor<f64>) -> tensor<f32>
    %cst_139 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %1037 = stablehlo.compare LT, %1036, %cst_139, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %1038 = call @_where_12(%1037, %arg33, %850) : (tensor<i1>, tensor<16xf32>, tensor<16xf32>) -> tensor<16xf32>
    %cst_140 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %1039 = stablehlo.subtract %1036, %cst_140 : tensor<f32>
    %1040 = call @_where_10(%1037, %1036, %1039) : (tensor<i1>, tensor<f32>, tensor<f32>) -> tensor<f32>
    %1041 = stablehlo.subtract %850, %arg33 : tensor<16xf32>
    %1042 = stablehlo.broadcast_in_dim %1040, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1043 = stablehlo.multiply %1042, %1041 : tensor<16xf32>
    %1044 = stablehlo.add %1038, %1043 : tensor<16xf32>
    %1045 = stablehlo.convert %909 : (tensor<f64>) -> tensor<f32>
    %cst_141 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %1046 = stablehlo.compare LT, %1045, %cst_141, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %1047 = call @_where_12(%1046, %arg34, %852) : (tensor<i1>, tensor<16xf32>, tensor<16xf32>) -> tensor<16xf32>
    %cst_142 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %1048 = stablehlo.subtract %1045, %cst_142 : tensor<f32>
    %1049 = call @_where_10(%1046, %1045, %1048) : (tensor<i1>, tensor<f32>, tensor<f32>) -> tensor<f32>
    %1050 = stablehlo.subtract %852, %arg34 : tensor<16xf32>
    %1051 = stablehlo.broadcast_in_dim %1049, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1052 = stablehlo.multiply %1051, %1050 : tensor<16xf32>
    %1053 = stablehlo.add %1047, %1052 : tensor<16xf32>
    %1054 = stablehlo.convert %909 : (tensor<f64>) -> tensor<f32>
    %cst_143 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %1055 = stablehlo.compare LT, %1054, %cst_143, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %1056 = call @_where_9(%1055, %arg35, %854) : (tensor<i1>, tensor<32x16xf32>, tensor<32x16xf32>) -> tensor<32x16xf32>
    %cst_144 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %1057 = stablehlo.subtract %1054, %cst_144 : tensor<f32>
    %1058 = call @_where_10(%1055, %1054, %1057) : (tensor<i1>, tensor<f32>, tensor<f32>) -> tensor<f32>
    %1059 = stablehlo.subtract %854, %arg35 : tensor<32x16xf32>
    %1060 = stablehlo.broadcast_in_dim %1058, dims = [] : (tensor<f32>) -> tensor<32x16xf32>
    %1061 = stablehlo.multiply %1060, %1059 : tensor<32x16xf32>
    %1062 = stablehlo.add %1056, %1061 : tensor<32x16xf32>
    %1063 = stablehlo.slice %arg53 [5:6] : (tensor<10xf64>) -> tensor<1xf64>
    %1064 = stablehlo.reshape %1063 : (tensor<1xf64>) -> tensor<f64>
    %1065 = stablehlo.convert %1064 : (tensor<f64>) -> tensor<f32>
    %1066 = stablehlo.broadcast_in_dim %1065, dims = [] : (tensor<f32>) -> tensor<32x16xf32>
    %1067 = stablehlo.multiply %arg36, %1066 : tensor<32x16xf32>
    %1068 = stablehlo.convert %1064 : (tensor<f64>) -> tensor<f32>
    %1069 = stablehlo.broadcast_in_dim %1068, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %1070 = stablehlo.multiply %arg37, %1069 : tensor<8x16xf32>
    %1071 = stablehlo.convert %1064 : (tensor<f64>) -> tensor<f32>
    %1072 = stablehlo.broadcast_in_dim %1071, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1073 = stablehlo.multiply %arg38, %1072 : tensor<16xf32>
    %1074 = stablehlo.convert %1064 : (tensor<f64>) -> tensor<f32>
    %1075 = stablehlo.broadcast_in_dim %1074, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1076 = stablehlo.multiply %arg39, %1075 : tensor<16xf32>
    %1077 = stablehlo.convert %1064 : (tensor<f64>) -> tensor<f32>
    %1078 = stablehlo.broadcast_in_dim %1077, dims = [] : (tensor<f32>) -> tensor<48x16xf32>
    %1079 = stablehlo.multiply %arg40, %1078 : tensor<48x16xf32>
    %1080 = stablehlo.convert %1064 : (tensor<f64>) -> tensor<f32>
    %1081 = stablehlo.broadcast_in_dim %1080, dims = [] : (tensor<f32>) -> tensor<48xf32>
    %1082 = stablehlo.multiply %arg41, %1081 : tensor<48xf32>
    %1083 = stablehlo.convert %1064 : (tensor<f64>) -> tensor<f32>
    %1084 = stablehlo.broadcast_in_dim %1083, dims = [] : (tensor<f32>) -> tensor<16x16xf32>
    %1085 = stablehlo.multiply %arg42, %1084 : tensor<16x16xf32>
    %1086 = stablehlo.convert %1064 : (tensor<f64>) -> tensor<f32>
    %1087 = stablehlo.broadcast_in_dim %1086, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1088 = stablehlo.multiply %arg43, %1087 : tensor<16xf32>
    %1089 = stablehlo.convert %1064 : (tensor<f64>) -> tensor<f32>
    %1090 = stablehlo.broadcast_in_dim %1089, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1091 = stablehlo.multiply %arg44, %1090 : tensor<16xf32>
    %1092 = stablehlo.convert %1064 : (tensor<f64>) -> tensor<f32>
    %1093 = stablehlo.broadcast_in_dim %1092, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1094 = stablehlo.multiply %arg45, %1093 : tensor<16xf32>
    %1095 = stablehlo.convert %1064 : (tensor<f64>) -> tensor<f32>
    %1096 = stablehlo.broadcast_in_dim %1095, dims = [] : (tensor<f32>) -> tensor<64x16xf32>
    %1097 = stablehlo.multiply %arg46, %1096 : tensor<64x16xf32>
    %1098 = stablehlo.convert %1064 : (tensor<f64>) -> tensor<f32>
    %1099 = stablehlo.broadcast_in_dim %1098, dims = [] : (tensor<f32>) -> tensor<64xf32>
    %1100 = stablehlo.multiply %arg47, %1099 : tensor<64xf32>
    %1101 = stablehlo.convert %1064 : (tensor<f64>) -> tensor<f32>
    %1102 = stablehlo.broadcast_in_dim %1101, dims = [] : (tensor<f32>) -> tensor<16x64xf32>
    %1103 = stablehlo.multiply %arg48, %1102 : tensor<16x64xf32>
    %1104 = stablehlo.convert %1064 : (tensor<f64>) -> tensor<f32>
    %1105 = stablehlo.broadcast_in_dim %1104, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1106 = stablehlo.multiply %arg49, %1105 : tensor<16xf32>
    %1107 = stablehlo.convert %1064 : (tensor<f64>) -> tensor<f32>
    %1108 = stablehlo.broadcast_in_dim %1107, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1109 = stablehlo.multiply %arg50, %1108 : tensor<16xf32>
    %1110 = stablehlo.convert %1064 : (tensor<f64>) -> tensor<f32>
    %1111 = stablehlo.broadcast_in_dim %1110, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1112 = stablehlo.multiply %arg51, %1111 : tensor<16xf32>
    %1113 = stablehlo.convert %1064 : (tensor<f64>) -> tensor<f32>
    %1114 = stablehlo.broadcast_in_dim %1113, dims = [] : (tensor<f32>) -> tensor<32x16xf32>
    %1115 = stablehlo.multiply %arg52, %1114 : tensor<32x16xf32>
    %1116 = stablehlo.slice %arg53 [6:7] : (tensor<10xf64>) -> tensor<1xf64>
    %1117 = stablehlo.reshape %1116 : (tensor<1xf64>) -> tensor<f64>
    %1118 = stablehlo.convert %1117 : (tensor<f64>) -> tensor<f32>
    %1119 = stablehlo.broadcast_in_dim %1118, dims = [] : (tensor<f32>) -> tensor<32x16xf32>
    %1120 = stablehlo.multiply %1119, %822 : tensor<32x16xf32>
    %1121 = stablehlo.multiply %1120, %822 : tensor<32x16xf32>
    %1122 = stablehlo.add %1067, %1121 : tensor<32x16xf32>
    %1123 = stablehlo.convert %1117 : (tensor<f64>) -> tensor<f32>
    %1124 = stablehlo.broadcast_in_dim %1123, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %1125 = stablehlo.multiply %1124, %824 : tensor<8x16xf32>
    %1126 = stablehlo.multiply %1125, %824 : tensor<8x16xf32>
    %1127 = stablehlo.add %1070, %1126 : tensor<8x16xf32>
    %1128 = stablehlo.convert %1117 : (tensor<f64>) -> tensor<f32>
    %1129 = stablehlo.broadcast_in_dim %1128, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1130 = stablehlo.multiply %1129, %826 : tensor<16xf32>
    %1131 = stablehlo.multiply %1130, %826 : tensor<16xf32>
    %1132 = stablehlo.add %1073, %1131 : tensor<16xf32>
    %1133 = stablehlo.convert %1117 : (tensor<f64>) -> tensor<f32>
    %1134 = stablehlo.broadcast_in_dim %1133, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1135 = stablehlo.multiply %1134, %828 : tensor<16xf32>
    %1136 = stablehlo.multiply %1135, %828 : tensor<16xf32>
    %1137 = stablehlo.add %1076, %1136 : tensor<16xf32>
    %1138 = stablehlo.convert %1117 : (tensor<f64>) -> tensor<f32>
    %1139 = stablehlo.broadcast_in_dim %1138, dims = [] : (tensor<f32>) -> tensor<48x16xf32>
    %1140 = stablehlo.multiply %1139, %830 : tensor<48x16xf32>
    %1141 = stablehlo.multiply %1140, %830 : tensor<48x16xf32>
    %1142 = stablehlo.add %1079, %1141 : tensor<48x16xf32>
    %1143 = stablehlo.convert %1117 : (tensor<f64>) -> tensor<f32>
    %1144 = stablehlo.broadcast_in_dim %1143, dims = [] : (tensor<f32>) -> tensor<48xf32>
    %1145 = stablehlo.multiply %1144, %832 : tensor<48xf32>
    %1146 = stablehlo.multiply %1145, %832 : tensor<48xf32>
    %1147 = stablehlo.add %1082, %1146 : tensor<48xf32>
    %1148 = stablehlo.convert %1117 : (tensor<f64>) -> tensor<f32>
    %1149 = stablehlo.broadcast_in_dim %1148, dims = [] : (tensor<f32>) -> tensor<16x16xf32>
    %1150 = stablehlo.multiply %1149, %834 : tensor<16x16xf32>
    %1151 = stablehlo.multiply %1150, %834 : tensor<16x16xf32>
    %1152 = stablehlo.add %1085, %1151 : tensor<16x16xf32>
    %1153 = stablehlo.convert %1117 : (tensor<f64>) -> tensor<f32>
    %1154 = stablehlo.broadcast_in_dim %1153, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1155 = stablehlo.multiply %1154, %836 : tensor<16xf32>
    %1156 = stablehlo.multiply %1155, %836 : tensor<16xf32>
    %1157 = stablehlo.add %1088, %1156 : tensor<16xf32>
    %1158 = stablehlo.convert %1117 : (tensor<f64>) -> tensor<f32>
    %1159 = stablehlo.broadcast_in_dim %1158, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1160 = stablehlo.multiply %1159, %838 : tensor<16xf32>
    %1161 = stablehlo.multiply %1160, %838 : tensor<16xf32>
    %1162 = stablehlo.add %1091, %1161 : tensor<16xf32>
    %1163 = stablehlo.convert %1117 : (tensor<f64>) -> tensor<f32>
    %1164 = stablehlo.broadcast_in_dim %1163, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1165 = stablehlo.multiply %1164, %840 : tensor<16xf32>
    %1166 = stablehlo.multiply %1165, %840 : tensor<16xf32>
    %1167 = stablehlo.add %1094, %1166 : tensor<16xf32>
    %1168 = stablehlo.convert %1117 : (tensor<f64>) -> tensor<f32>
    %1169 = stablehlo.broadcast_in_dim %1168, dims = [] : (tensor<f32>) -> tensor<64x16xf32>
    %1170 = stablehlo.multiply %1169, %842 : tensor<64x16xf32>
    %1171 = stablehlo.multiply %1170, %842 : tensor<64x16xf32>
    %1172 = stablehlo.add %1097, %1171 : tensor<64x16xf32>
    %1173 = stablehlo.convert %1117 : (tensor<f64>) -> tensor<f32>
    %1174 = stablehlo.broadcast_in_dim %1173, dims = [] : (tensor<f32>) -> tensor<64xf32>
    %1175 = stablehlo.multiply %1174, %844 : tensor<64xf32>
    %1176 = stablehlo.multiply %1175, %844 : tensor<64xf32>
    %1177 = stablehlo.add %1100, %1176 : tensor<64xf32>
    %1178 = stablehlo.convert %1117 : (tensor<f64>) -> tensor<f32>
    %1179 = stablehlo.broadcast_in_dim %1178, dims = [] : (tensor<f32>) -> tensor<16x64xf32>
    %1180 = stablehlo.multiply %1179, %846 : tensor<16x64xf32>
    %1181 = stablehlo.multiply %1180, %846 : tensor<16x64xf32>
    %1182 = stablehlo.add %1103, %1181 : tensor<16x64xf32>
    %1183 = stablehlo.convert %1117 : (tensor<f64>) -> tensor<f32>
    %1184 = stablehlo.broadcast_in_dim %1183, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1185 = stablehlo.multiply %1184, %848 : tensor<16xf32>
    %1186 = stablehlo.multiply %1185, %848 : tensor<16xf32>
    %1187 = stablehlo.add %1106, %1186 : tensor<16xf32>
    %1188 = stablehlo.convert %1117 : (tensor<f64>) -> tensor<f32>
    %1189 = stablehlo.broadcast_in_dim %1188, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1190 = stablehlo.multiply %1189, %850 : tensor<16xf32>
    %1191 = stablehlo.multiply %1190, %850 : tensor<16xf32>
    %1192 = stablehlo.add %1109, %1191 : tensor<16xf32>
    %1193 = stablehlo.convert %1117 : (tensor<f64>) -> tensor<f32>
    %1194 = stablehlo.broadcast_in_dim %1193, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1195 = stablehlo.multiply %1194, %852 : tensor<16xf32>
    %1196 = stablehlo.multiply %1195, %852 : tensor<16xf32>
    %1197 = stablehlo.add %1112, %1196 : tensor<16xf32>
    %1198 = stablehlo.convert %1117 : (tensor<f64>) -> tensor<f32>
    %1199 = stablehlo.broadcast_in_dim %1198, dims = [] : (tensor<f32>) -> tensor<32x16xf32>
    %1200 = stablehlo.multiply %1199, %854 : tensor<32x16xf32>
    %1201 = stablehlo.multiply %1200, %854 : tensor<32x16xf32>
    %1202 = stablehlo.add %1115, %1201 : tensor<32x16xf32>
    %1203 = stablehlo.sqrt %1122 : tensor<32x16xf32>
    %1204 = stablehlo.sqrt %1127 : tensor<8x16xf32>
    %1205 = stablehlo.sqrt %1132 : tensor<16xf32>
    %1206 = stablehlo.sqrt %1137 : tensor<16xf32>
    %1207 = stablehlo.sqrt %1142 : tensor<48x16xf32>
    %1208 = stablehlo.sqrt %1147 : tensor<48xf32>
    %1209 = stablehlo.sqrt %1152 : tensor<16x16xf32>
    %1210 = stablehlo.sqrt %1157 : tensor<16xf32>
    %1211 = stablehlo.sqrt %1162 : tensor<16xf32>
    %1212 = stablehlo.sqrt %1167 : tensor<16xf32>
    %1213 = stablehlo.sqrt %1172 : tensor<64x16xf32>
    %1214 = stablehlo.sqrt %1177 : tensor<64xf32>
    %1215 = stablehlo.sqrt %1182 : tensor<16x64xf32>
    %1216 = stablehlo.sqrt %1187 : tensor<16xf32>
    %1217 = stablehlo.sqrt %1192 : tensor<16xf32>
    %1218 = stablehlo.sqrt %1197 : tensor<16xf32>
    %1219 = stablehlo.sqrt %1202 : tensor<32x16xf32>
    %1220 = stablehlo.slice %arg53 [7:8] : (tensor<10xf64>) -> tensor<1xf64>
    %1221 = stablehlo.reshape %1220 : (tensor<1xf64>) -> tensor<f64>
    %1222 = stablehlo.convert %1221 : (tensor<f64>) -> tensor<f32>
    %1223 = stablehlo.broadcast_in_dim %1222, dims = [] : (tensor<f32>) -> tensor<32x16xf32>
    %1224 = stablehlo.divide %1203, %1223 : tensor<32x16xf32>
    %1225 = stablehlo.convert %1221 : (tensor<f64>) -> tensor<f32>
    %1226 = stablehlo.broadcast_in_dim %1225, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %1227 = stablehlo.divide %1204, %1226 : tensor<8x16xf32>
    %1228 = stablehlo.convert %1221 : (tensor<f64>) -> tensor<f32>
    %1229 = stablehlo.broadcast_in_dim %1228, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1230 = stablehlo.divide %1205, %1229 : tensor<16xf32>
    %1231 = stablehlo.convert %1221 : (tensor<f64>) -> tensor<f32>
    %1232 = stablehlo.broadcast_in_dim %1231, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1233 = stablehlo.divide %1206, %1232 : tensor<16xf32>
    %1234 = stablehlo.convert %1221 : (tensor<f64>) -> tensor<f32>
    %1235 = stablehlo.broadcast_in_dim %1234, dims = [] : (tensor<f32>) -> tensor<48x16xf32>
    %1236 = stablehlo.divide %1207, %1235 : tensor<48x16xf32>
    %1237 = stablehlo.convert %1221 : (tensor<f64>) -> tensor<f32>
    %1238 = stablehlo.broadcast_in_dim %1237, dims = [] : (tensor<f32>) -> tensor<48xf32>
    %1239 = stablehlo.divide %1208, %1238 : tensor<48xf32>
    %1240 = stablehlo.convert %1221 : (tensor<f64>) -> tensor<f32>
    %1241 = stablehlo.broadcast_in_dim %1240, dims = [] : (tensor<f32>) -> tensor<16x16xf32>
    %1242 = stablehlo.divide %1209, %1241 : tensor<16x16xf32>
    %1243 = stablehlo.convert %1221 : (tensor<f64>) -> tensor<f32>
    %1244 = stablehlo.broadcast_in_dim %1243, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1245 = stablehlo.divide %1210, %1244 : tensor<16xf32>
    %1246 = stablehlo.convert %1221 : (tensor<f64>) -> tensor<f32>
    %1247 = stablehlo.broadcast_in_dim %1246, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1248 = stablehlo.divide %1211, %1247 : tensor<16xf32>
    %1249 = stablehlo.convert %1221 : (tensor<f64>) -> tensor<f32>
    %1250 = stablehlo.broadcast_in_dim %1249, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1251 = stablehlo.divide %1212, %1250 : tensor<16xf32>
    %1252 = stablehlo.convert %1221 : (tensor<f64>) -> tensor<f32>
    %1253 = stablehlo.broadcast_in_dim %1252, dims = [] : (tensor<f32>) -> tensor<64x16xf32>
    %1254 = stablehlo.divide %1213, %1253 : tensor<64x16xf32>
    %1255 = stablehlo.convert %1221 : (tensor<f64>) -> tensor<f32>
    %1256 = stablehlo.broadcast_in_dim %1255, dims = [] : (tensor<f32>) -> tensor<64xf32>
    %1257 = stablehlo.divide %1214, %1256 : tensor<64xf32>
    %1258 = stablehlo.convert %1221 : (tensor<f64>) -> tensor<f32>
    %1259 = stablehlo.broadcast_in_dim %1258, dims = [] : (tensor<f32>) -> tensor<16x64xf32>
    %1260 = stablehlo.divide %1215, %1259 : tensor<16x64xf32>
    %1261 = stablehlo.convert %1221 : (tensor<f64>) -> tensor<f32>
    %1262 = stablehlo.broadcast_in_dim %1261, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1263 = stablehlo.divide %1216, %1262 : tensor<16xf32>
    %1264 = stablehlo.convert %1221 : (tensor<f64>) -> tensor<f32>
    %1265 = stablehlo.broadcast_in_dim %1264, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1266 = stablehlo.divide %1217, %1265 : tensor<16xf32>
    %1267 = stablehlo.convert %1221 : (tensor<f64>) -> tensor<f32>
    %1268 = stablehlo.broadcast_in_dim %1267, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1269 = stablehlo.divide %1218, %1268 : tensor<16xf32>
    %1270 = stablehlo.convert %1221 : (tensor<f64>) -> tensor<f32>
    %1271 = stablehlo.broadcast_in_dim %1270, dims = [] : (tensor<f32>) -> tensor<32x16xf32>
    %1272 = stablehlo.divide %1219, %1271 : tensor<32x16xf32>
    %1273 = stablehlo.slice %arg53 [8:9] : (tensor<10xf64>) -> tensor<1xf64>
    %1274 = stablehlo.reshape %1273 : (tensor<1xf64>) -> tensor<f64>
    %1275 = stablehlo.convert %1274 : (tensor<f64>) -> tensor<f32>
    %1276 = stablehlo.broadcast_in_dim %1275, dims = [] : (tensor<f32>) -> tensor<32x16xf32>
    %1277 = stablehlo.add %1224, %1276 : tensor<32x16xf32>
    %1278 = stablehlo.convert %1274 : (tensor<f64>) -> tensor<f32>
    %1279 = stablehlo.broadcast_in_dim %1278, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %1280 = stablehlo.add %1227, %1279 : tensor<8x16xf32>
    %1281 = stablehlo.convert %1274 : (tensor<f64>) -> tensor<f32>
    %1282 = stablehlo.broadcast_in_dim %1281, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1283 = stablehlo.add %1230, %1282 : tensor<16xf32>
    %1284 = stablehlo.convert %1274 : (tensor<f64>) -> tensor<f32>
    %1285 = stablehlo.broadcast_in_dim %1284, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1286 = stablehlo.add %1233, %1285 : tensor<16xf32>
    %1287 = stablehlo.convert %1274 : (tensor<f64>) -> tensor<f32>
    %1288 = stablehlo.broadcast_in_dim %1287, dims = [] : (tensor<f32>) -> tensor<48x16xf32>
    %1289 = stablehlo.add %1236, %1288 : tensor<48x16xf32>
    %1290 = stablehlo.convert %1274 : (tensor<f64>) -> tensor<f32>
    %1291 = stablehlo.broadcast_in_dim %1290, dims = [] : (tensor<f32>) -> tensor<48xf32>
    %1292 = stablehlo.add %1239, %1291 : tensor<48xf32>
    %1293 = stablehlo.convert %1274 : (tensor<f64>) -> tensor<f32>
    %1294 = stablehlo.broadcast_in_dim %1293, dims = [] : (tensor<f32>) -> tensor<16x16xf32>
    %1295 = stablehlo.add %1242, %1294 : tensor<16x16xf32>
    %1296 = stablehlo.convert %1274 : (tensor<f64>) -> tensor<f32>
    %1297 = stablehlo.broadcast_in_dim %1296, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1298 = stablehlo.add %1245, %1297 : tensor<16xf32>
    %1299 = stablehlo.convert %1274 : (tensor<f64>) -> tensor<f32>
    %1300 = stablehlo.broadcast_in_dim %1299, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1301 = stablehlo.add %1248, %1300 : tensor<16xf32>
    %1302 = stablehlo.convert %1274 : (tensor<f64>) -> tensor<f32>
    %1303 = stablehlo.broadcast_in_dim %1302, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1304 = stablehlo.add %1251, %1303 : tensor<16xf32>
    %1305 = stablehlo.convert %1274 : (tensor<f64>) -> tensor<f32>
    %1306 = stablehlo.broadcast_in_dim %1305, dims = [] : (tensor<f32>) -> tensor<64x16xf32>
    %1307 = stablehlo.add %1254, %1306 : tensor<64x16xf32>
    %1308 = stablehlo.convert %1274 : (tensor<f64>) -> tensor<f32>
    %1309 = stablehlo.broadcast_in_dim %1308, dims = [] : (tensor<f32>) -> tensor<64xf32>
    %1310 = stablehlo.add %1257, %1309 : tensor<64xf32>
    %1311 = stablehlo.convert %1274 : (tensor<f64>) -> tensor<f32>
    %1312 = stablehlo.broadcast_in_dim %1311, dims = [] : (tensor<f32>) -> tensor<16x64xf32>
    %1313 = stablehlo.add %1260, %1312 : tensor<16x64xf32>
    %1314 = stablehlo.convert %1274 : (tensor<f64>) -> tensor<f32>
    %1315 = stablehlo.broadcast_in_dim %1314, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1316 = stablehlo.add %1263, %1315 : tensor<16xf32>
    %1317 = stablehlo.convert %1274 : (tensor<f64>) -> tensor<f32>
    %1318 = stablehlo.broadcast_in_dim %1317, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1319 = stablehlo.add %1266, %1318 : tensor<16xf32>
    %1320 = stablehlo.convert %1274 : (tensor<f64>) -> tensor<f32>
    %1321 = stablehlo.broadcast_in_dim %1320, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1322 = stablehlo.add %1269, %1321 : tensor<16xf32>
    %1323 = stablehlo.convert %1274 : (tensor<f64>) -> tensor<f32>
    %1324 = stablehlo.broadcast_in_dim %1323, dims = [] : (tensor<f32>) -> tensor<32x16xf32>
    %1325 = stablehlo.add %1272, %1324 : tensor<32x16xf32>
    %1326 = stablehlo.slice %arg53 [9:10] : (tensor<10xf64>) -> tensor<1xf64>
    %1327 = stablehlo.reshape %1326 : (tensor<1xf64>) -> tensor<f64>
    %1328 = stablehlo.convert %1327 : (tensor<f64>) -> tensor<f32>
    %1329 = stablehlo.broadcast_in_dim %1328, dims = [] : (tensor<f32>) -> tensor<32x16xf32>
    %1330 = stablehlo.multiply %1329, %918 : tensor<32x16xf32>
    %1331 = stablehlo.divide %1330, %1277 : tensor<32x16xf32>
    %1332 = stablehlo.add %859, %1331 : tensor<32x16xf32>
    %1333 = stablehlo.convert %1327 : (tensor<f64>) -> tensor<f32>
    %1334 = stablehlo.broadcast_in_dim %1333, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %1335 = stablehlo.multiply %1334, %927 : tensor<8x16xf32>
    %1336 = stablehlo.divide %1335, %1280 : tensor<8x16xf32>
    %1337 = stablehlo.add %862, %1336 : tensor<8x16xf32>
    %1338 = stablehlo.convert %1327 : (tensor<f64>) -> tensor<f32>
    %1339 = stablehlo.broadcast_in_dim %1338, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1340 = stablehlo.multiply %1339, %936 : tensor<16xf32>
    %1341 = stablehlo.divide %1340, %1283 : tensor<16xf32>
    %1342 = stablehlo.add %865, %1341 : tensor<16xf32>
    %1343 = stablehlo.convert %1327 : (tensor<f64>) -> tensor<f32>
    %1344 = stablehlo.broadcast_in_dim %1343, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1345 = stablehlo.multiply %1344, %945 : tensor<16xf32>
    %1346 = stablehlo.divide %1345, %1286 : tensor<16xf32>
    %1347 = stablehlo.add %868, %1346 : tensor<16xf32>
    %1348 = stablehlo.convert %1327 : (tensor<f64>) -> tensor<f32>
    %1349 = stablehlo.broadcast_in_dim %1348, dims = [] : (tensor<f32>) -> tensor<48x16xf32>
    %1350 = stablehlo.multiply %1349, %954 : tensor<48x16xf32>
    %1351 = stablehlo.divide %1350, %1289 : tensor<48x16xf32>
    %1352 = stablehlo.add %871, %1351 : tensor<48x16xf32>
    %1353 = stablehlo.convert %1327 : (tensor<f64>) -> tensor<f32>
    %1354 = stablehlo.broadcast_in_dim %1353, dims = [] : (tensor<f32>) -> tensor<48xf32>
    %1355 = stablehlo.multiply %1354, %963 : tensor<48xf32>
    %1356 = stablehlo.divide %1355, %1292 : tensor<48xf32>
    %1357 = stablehlo.add %874, %1356 : tensor<48xf32>
    %1358 = stablehlo.convert %1327 : (tensor<f64>) -> tensor<f32>
    %1359 = stablehlo.broadcast_in_dim %1358, dims = [] : (tensor<f32>) -> tensor<16x16xf32>
    %1360 = stablehlo.multiply %1359, %972 : tensor<16x16xf32>
    %1361 = stablehlo.divide %1360, %1295 : tensor<16x16xf32>
    %1362 = stablehlo.add %877, %1361 : tensor<16x16xf32>
    %1363 = stablehlo.convert %1327 : (tensor<f64>) -> tensor<f32>
    %1364 = stablehlo.broadcast_in_dim %1363, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1365 = stablehlo.multiply %1364, %981 : tensor<16xf32>
    %1366 = stablehlo.divide %1365, %1298 : tensor<16xf32>
    %1367 = stablehlo.add %880, %1366 : tensor<16xf32>
    %1368 = stablehlo.convert %1327 : (tensor<f64>) -> tensor<f32>
    %1369 = stablehlo.broadcast_in_dim %1368, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1370 = stablehlo.multiply %1369, %990 : tensor<16xf32>
    %1371 = stablehlo.divide %1370, %1301 : tensor<16xf32>
    %1372 = stablehlo.add %883, %1371 : tensor<16xf32>
    %1373 = stablehlo.convert %1327 : (tensor<f64>) -> tensor<f32>
    %1374 = stablehlo.broadcast_in_dim %1373, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1375 = stablehlo.multiply %1374, %999 : tensor<16xf32>
    %1376 = stablehlo.divide %1375, %1304 : tensor<16xf32>
    %1377 = stablehlo.add %886, %1376 : tensor<16xf32>
    %1378 = stablehlo.convert %1327 : (tensor<f64>) -> tensor<f32>
    %1379 = stablehlo.broadcast_in_dim %1378, dims = [] : (tensor<f32>) -> tensor<64x16xf32>
    %1380 = stablehlo.multiply %1379, %1008 : tensor<64x16xf32>
    %1381 = stablehlo.divide %1380, %1307 : tensor<64x16xf32>
    %1382 = stablehlo.add %889, %1381 : tensor<64x16xf32>
    %1383 = stablehlo.convert %1327 : (tensor<f64>) -> tensor<f32>
    %1384 = stablehlo.broadcast_in_dim %1383, dims = [] : (tensor<f32>) -> tensor<64xf32>
    %1385 = stablehlo.multiply %1384, %1017 : tensor<64xf32>
    %1386 = stablehlo.divide %1385, %1310 : tensor<64xf32>
    %1387 = stablehlo.add %892, %1386 : tensor<64xf32>
    %1388 = stablehlo.convert %1327 : (tensor<f64>) -> tensor<f32>
    %1389 = stablehlo.broadcast_in_dim %1388, dims = [] : (tensor<f32>) -> tensor<16x64xf32>
    %1390 = stablehlo.multiply %1389, %1026 : tensor<16x64xf32>
    %1391 = stablehlo.divide %1390, %1313 : tensor<16x64xf32>
    %1392 = stablehlo.add %895, %1391 : tensor<16x64xf32>
    %1393 = stablehlo.convert %1327 : (tensor<f64>) -> tensor<f32>
    %1394 = stablehlo.broadcast_in_dim %1393, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1395 = stablehlo.multiply %1394, %1035 : tensor<16xf32>
    %1396 = stablehlo.divide %1395, %1316 : tensor<16xf32>
    %1397 = stablehlo.add %898, %1396 : tensor<16xf32>
    %1398 = stablehlo.convert %1327 : (tensor<f64>) -> tensor<f32>
    %1399 = stablehlo.broadcast_in_dim %1398, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1400 = stablehlo.multiply %1399, %1044 : tensor<16xf32>
    %1401 = stablehlo.divide %1400, %1319 : tensor<16xf32>
    %1402 = stablehlo.add %901, %1401 : tensor<16xf32>
    %1403 = stablehlo.convert %1327 : (tensor<f64>) -> tensor<f32>
    %1404 = stablehlo.broadcast_in_dim %1403, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1405 = stablehlo.multiply %1404, %1053 : tensor<16xf32>
    %1406 = stablehlo.divide %1405, %1322 : tensor<16xf32>
    %1407 = stablehlo.add %904, %1406 : tensor<16xf32>
    %1408 = stablehlo.convert %1327 : (tensor<f64>) -> tensor<f32>
    %1409 = stablehlo.broadcast_in_dim %1408, dims = [] : (tensor<f32>) -> tensor<32x16xf32>
    %1410 = stablehlo.multiply %1409, %1062 : tensor<32x16xf32>
    %1411 = stablehlo.divide %1410, %1325 : tensor<32x16xf32>
    %1412 = stablehlo.add %907, %1411 : tensor<32x16xf32>
    return %328, %918, %927, %936, %945, %954, %963, %972, %981, %990, %999, %1008, %1017, %1026, %1035, %1044, %1053, %1062, %1122, %1127, %1132, %1137, %1142, %1147, %1152, %1157, %1162, %1167, %1172, %1177, %1182, %1187, %1192, %1197, %1202, %1332, %1337, %1342, %1347, %1352, %1357, %1362, %1367, %1372, %1377, %1382, %1387, %1392, %1397, %1402, %1407, %1412 : tensor<f32>, tensor<32x16xf32>, tensor<8x16xf32>, tensor<16xf32>, tensor<16xf32>, tensor<48x16xf32>, tensor<48xf32>, tensor<16x16xf32>, tensor<16xf32>, tensor<16xf32>, tensor<16xf32>, tensor<64x16xf32>, tensor<64xf32>, tensor<16x64xf32>, tensor<16xf32>, tensor<16xf32>, tensor<16xf32>, tensor<32x16xf32>, tensor<32x16xf32>, tensor<8x16xf32>, tensor<16xf32>, tensor<16xf32>, tensor<48x16xf32>, tensor<48xf32>, tensor<16x16xf32>, tensor<16xf32>, tensor<16xf32>, tensor<16xf32>, tensor<64x16xf32>, tensor<64xf32>, tensor<16x64xf32>, tensor<16xf32>, tensor<16xf32>, tensor<16xf32>, tensor<32x16xf32>, tensor<32x16xf32>, tensor<8x16xf32>, tensor<16xf32>, tensor<16xf32>, tensor<48x16xf32>, tensor<48xf32>, tensor<16x16xf32>, tensor<16xf32>, tensor<16xf32>, tensor<16xf32>, tensor<64x16xf32>, tensor<64xf32>, tensor<16x64xf32>, tensor<16xf32>, tensor<16xf32>, tensor<16xf32>, tensor<32x16xf32>
  }
  func.func private @atleast_2d(%arg0: tensor<48x16xf32>) -> tensor<48x16xf32> {
    return %arg0 : tensor<48x16xf32>
  }
  func.func private @_where(%arg0: tensor<8x8xi1>, %arg1: tensor<8x2x8x8xf32>, %arg2: tensor<f32>) -> tensor<8x2x8x8xf32> {
    %0 = stablehlo.broadcast_in_dim %arg0, dims = [2, 3] : (tensor<8x8xi1>) -> tensor<8x2x8x8xi1>
    %1 = stablehlo.broadcast_in_dim %arg2, dims = [] : (tensor<f32>) -> tensor<8x2x8x8xf32>
    %2 = stablehlo.select %0, %arg1, %1 : tensor<8x2x8x8xi1>, tensor<8x2x8x8xf32>
    return %2 : tensor<8x2x8x8xf32>
  }
  func.func private @atleast_2d_0(%arg0: tensor<16x16xf32>) -> tensor<16x16xf32> {
    return %arg0 : tensor<16x16xf32>
  }
  func.func private @atleast_2d_1(%arg0: tensor<64x16xf32>) -> tensor<64x16xf32> {
    return %arg0 : tensor<64x16xf32>
  }
  func.func private @atleast_2d_2(%arg0: tensor<16x64xf32>) -> tensor<16x64xf32> {
    return %arg0 : tensor<16x64xf32>
  }
  func.func private @atleast_2d_3(%arg0: tensor<32x16xf32>) -> tensor<32x16xf32> {
    return %arg0 : tensor<32x16xf32>
  }
  func.func private @_where_4(%arg0: tensor<64xi1>, %arg1: tensor<64xi64>, %arg2: tensor<i64>) -> tensor<64xi64> {
    %0 = stablehlo.broadcast_in_dim %arg2, dims = [] : (tensor<i64>) -> tensor<64xi64>
    %1 = stablehlo.select %arg0, %arg1, %0 : tensor<64xi1>, tensor<64xi64>
    return %1 : tensor<64xi64>
  }
  func.func private @_where_5(%arg0: tensor<64xi1>, %arg1: tensor<f32>, %arg2: tensor<f32>) -> tensor<64xf32> {
    %0 = stablehlo.broadcast_in_dim %arg1, dims = [] : (tensor<f32>) -> tensor<64xf32>
    %1 = stablehlo.broadcast_in_dim %arg2, dims = [] : (tensor<f32>) -> tensor<64xf32>
    %2 = stablehlo.select %arg0, %0, %1 : tensor<64xi1>, tensor<64xf32>
    return %2 : tensor<64xf32>
  }
  func.func private @take_along_axis(%arg0: tensor<64x32xf32>, %arg1: tensor<64x1xi64>) -> tensor<64x1xf32> {
    %0 = stablehlo.convert %arg1 : (tensor<64x1xi64>) -> tensor<64x1xi32>
    %c = stablehlo.constant dense<0> : tensor<i32>
    %1 = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<i32>) -> tensor<64x1xi32>
    %2 = stablehlo.compare LT, %0, %1, SIGNED : (tensor<64x1xi32>, tensor<64x1xi32>) -> tensor<64x1xi1>
    %c_0 = stablehlo.constant dense<32> : tensor<i32>
    %3 = stablehlo.broadcast_in_dim %c_0, dims = [] : (tensor<i32>) -> tensor<64x1xi32>
    %4 = stablehlo.add %0, %3 : tensor<64x1xi32>
    %5 = stablehlo.select %2, %4, %0 : tensor<64x1xi1>, tensor<64x1xi32>
    %6 = stablehlo.reshape %5 : (tensor<64x1xi32>) -> tensor<64x1x1xi32>
    %c_1 = stablehlo.constant dense<31> : tensor<1xi32>
    %c_2 = stablehlo.constant dense<0> : tensor<i32>
    %7 = stablehlo.broadcast_in_dim %c_2, dims = [] : (tensor<i32>) -> tensor<64x1x1xi32>
    %8 = stablehlo.compare GE, %6, %7, SIGNED : (tensor<64x1x1xi32>, tensor<64x1x1xi32>) -> tensor<64x1x1xi1>
    %9 = stablehlo.broadcast_in_dim %c_1, dims = [2] : (tensor<1xi32>) -> tensor<1x1x1xi32>
    %10 = stablehlo.broadcast_in_dim %9, dims = [0, 1, 2] : (tensor<1x1x1xi32>) -> tensor<64x1x1xi32>
    %11 = stablehlo.compare LE, %6, %10, SIGNED : (tensor<64x1x1xi32>, tensor<64x1x1xi32>) -> tensor<64x1x1xi1>
    %12 = stablehlo.and %8, %11 : tensor<64x1x1xi1>
    %c_3 = stablehlo.constant dense<true> : tensor<i1>
    %13 = stablehlo.reduce(%12 init: %c_3) applies stablehlo.and across dimensions = [2] : (tensor<64x1x1xi1>, tensor<i1>) -> tensor<64x1xi1>
    %14 = "stablehlo.gather"(%arg0, %6) <{dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [1], operand_batching_dims = [0], start_indices_batching_dims = [0], start_index_map = [1], index_vector_dim = 2>, indices_are_sorted = false, slice_sizes = array<i64: 1, 1>}> : (tensor<64x32xf32>, tensor<64x1x1xi32>) -> tensor<64x1xf32>
    %cst = stablehlo.constant dense<0x7FC00000> : tensor<f32>
    %15 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<64x1xf32>
    %16 = stablehlo.select %13, %14, %15 : tensor<64x1xi1>, tensor<64x1xf32>
    return %16 : tensor<64x1xf32>
  }
  func.func private @_where_6(%arg0: tensor<64xi1>, %arg1: tensor<64xf32>, %arg2: tensor<f32>) -> tensor<64xf32> {
    %0 = stablehlo.broadcast_in_dim %arg2, dims = [] : (tensor<f32>) -> tensor<64xf32>
    %1 = stablehlo.select %arg0, %arg1, %0 : tensor<64xi1>, tensor<64xf32>
    return %1 : tensor<64xf32>
  }
  func.func private @_where_7(%arg0: tensor<64xi1>, %arg1: tensor<f32>, %arg2: tensor<f32>) -> tensor<64xf32> {
    %0 = stablehlo.broadcast_in_dim %arg1, dims = [] : (tensor<f32>) -> tensor<64xf32>
    %1 = stablehlo.broadcast_in_dim %arg2, dims = [] : (tensor<f32>) -> tensor<64xf32>
    %2 = stablehlo.select %arg0, %0, %1 : tensor<64xi1>, tensor<64xf32>
    return %2 : tensor<64xf32>
  }
  func.func private @_where_8(%arg0: tensor<64x32xi1>, %arg1: tensor<64x1xf32>, %arg2: tensor<f32>) -> tensor<64x32xf32> {
    %0 = stablehlo.broadcast_in_dim %arg1, dims = [0, 1] : (tensor<64x1xf32>) -> tensor<64x32xf32>
    %1 = stablehlo.broadcast_in_dim %arg2, dims = [] : (tensor<f32>) -> tensor<64x32xf32>
    %2 = stablehlo.select %arg0, %0, %1 : tensor<64x32xi1>, tensor<64x32xf32>
    return %2 : tensor<64x32xf32>
  }
  func.func private @_where_9(%arg0: tensor<i1>, %arg1: tensor<32x16xf32>, %arg2: tensor<32x16xf32>) -> tensor<32x16xf32> {
    %0 = stablehlo.select %arg0, %arg1, %arg2 : tensor<i1>, tensor<32x16xf32>
    return %0 : tensor<32x16xf32>
  }
  func.func private @_where_10(%arg0: tensor<i1>, %arg1: tensor<f32>, %arg2: tensor<f32>) -> tensor<f32> {
    %0 = stablehlo.select %arg0, %arg1, %arg2 : tensor<i1>, tensor<f32>
    return %0 : tensor<f32>
  }
  func.func private @_where_11(%arg0: tensor<i1>, %arg1: tensor<8x16xf32>, %arg2: tensor<8x16xf32>) -> tensor<8x16xf32> {
    %0 = stablehlo.select %arg0, %arg1, %arg2 : tensor<i1>, tensor<8x16xf32>
    return %0 : tensor<8x16xf32>
  }
  func.func private @_where_12(%arg0: tensor<i1>, %arg1: tensor<16xf32>, %arg2: tensor<16xf32>) -> tensor<16xf32> {
    %0 = stablehlo.select %arg0, %arg1, %arg2 : tensor<i1>, tensor<16xf32>
    return %0 : tensor<16xf32>
  }
  func.func private @_where_13(%arg0: tensor<i1>, %arg1: tensor<48x16xf32>, %arg2: tensor<48x16xf32>) -> tensor<48x16xf32> {
    %0 = stablehlo.select %arg0, %arg1, %arg2 : tensor<i1>, tensor<48x16xf32>
    return %0 : tensor<48x16xf32>
  }
  func.func private @_where_14(%arg0: tensor<i1>, %arg1: tensor<48xf32>, %arg2: tensor<48xf32>) -> tensor<48xf32> {
    %0 = stablehlo.select %arg0, %arg1, %arg2 : tensor<i1>, tensor<48xf32>
    return %0 : tensor<48xf32>
  }
  func.func private @_where_15(%arg0: tensor<i1>, %arg1: tensor<16x16xf32>, %arg2: tensor<16x16xf32>) -> tensor<16x16xf32> {
    %0 = stablehlo.select %arg0, %arg1, %arg2 : tensor<i1>, tensor<16x16xf32>
    return %0 : tensor<16x16xf32>
  }
  func.func private @_where_16(%arg0: tensor<i1>, %arg1: tensor<64x16xf32>, %arg2: tensor<64x16xf32>) -> tensor<64x16xf32> {
    %0 = stablehlo.select %arg0, %arg1, %arg2 : tensor<i1>, tensor<64x16xf32>
    return %0 : tensor<64x16xf32>
  }
  func.func private @_where_17(%arg0: tensor<i1>, %arg1: tensor<64xf32>, %arg2: tensor<64xf32>) -> tensor<64xf32> {
    %0 = stablehlo.select %arg0, %arg1, %arg2 : tensor<i1>, tensor<64xf32>
    return %0 : tensor<64xf32>
  }
  func.func private @_where_18(%arg0: tensor<i1>, %arg1: tensor<16x64xf32>, %arg2: tensor<16x64xf32>) -> tensor<16x64xf32> {
    %0 = stablehlo.select %arg0, %arg1, %arg2 : tensor<i1>, tensor<16x64xf32>
    return %0 : tensor<16x64xf32>
  }
}

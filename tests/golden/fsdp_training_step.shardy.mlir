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
    %174 = stablehlo.reshape %173 : (tensor<8x8x16xf32>) -> tensor<64x16xf32>
    %175 = call @atleast_2d(%132) : (tensor<48x16xf32>) -> tensor<48x16xf32>
    %176 = stablehlo.transpose %175, dims = [1, 0] : (tensor<48x16xf32>) -> tensor<16x48xf32>
    %177 = stablehlo.dot_general %174, %176, contracting_dims = [1] x [0], precision = [HIGHEST, HIGHEST] : (tensor<64x16xf32>, tensor<16x48xf32>) -> tensor<64x48xf32>
    %178 = stablehlo.broadcast_in_dim %134, dims = [1] : (tensor<48xf32>) -> tensor<1x48xf32>
    %179 = stablehlo.broadcast_in_dim %178, dims = [0, 1] : (tensor<1x48xf32>) -> tensor<64x48xf32>
    %180 = stablehlo.add %179, %177 : tensor<64x48xf32>
    %181 = stablehlo.reshape %180 : (tensor<64x48xf32>) -> tensor<8x8x48xf32>
    %182 = stablehlo.reshape %181 : (tensor<8x8x48xf32>) -> tensor<8x8x3x2x8xf32>
    %183 = stablehlo.slice %182 [0:8, 0:8, 0:1, 0:2, 0:8] : (tensor<8x8x3x2x8xf32>) -> tensor<8x8x1x2x8xf32>
    %184 = stablehlo.reshape %183 : (tensor<8x8x1x2x8xf32>) -> tensor<8x8x2x8xf32>
    %185 = stablehlo.transpose %184, dims = [0, 2, 1, 3] : (tensor<8x8x2x8xf32>) -> tensor<8x2x8x8xf32>
    %186 = stablehlo.slice %182 [0:8, 0:8, 1:2, 0:2, 0:8] : (tensor<8x8x3x2x8xf32>) -> tensor<8x8x1x2x8xf32>
    %187 = stablehlo.reshape %186 : (tensor<8x8x1x2x8xf32>) -> tensor<8x8x2x8xf32>
    %188 = stablehlo.transpose %187, dims = [0, 2, 1, 3] : (tensor<8x8x2x8xf32>) -> tensor<8x2x8x8xf32>
    %189 = stablehlo.slice %182 [0:8, 0:8, 2:3, 0:2, 0:8] : (tensor<8x8x3x2x8xf32>) -> tensor<8x8x1x2x8xf32>
    %190 = stablehlo.reshape %189 : (tensor<8x8x1x2x8xf32>) -> tensor<8x8x2x8xf32>
    %191 = stablehlo.transpose %190, dims = [0, 2, 1, 3] : (tensor<8x8x2x8xf32>) -> tensor<8x2x8x8xf32>
    %192 = stablehlo.slice %arg54 [0:1] : (tensor<2xi64>) -> tensor<1xi64>
    %193 = stablehlo.reshape %192 : (tensor<1xi64>) -> tensor<i64>
    %194 = stablehlo.slice %arg54 [1:2] : (tensor<2xi64>) -> tensor<1xi64>
    %195 = stablehlo.reshape %194 : (tensor<1xi64>) -> tensor<i64>
    %196 = stablehlo.dot_general %185, %188, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [3], precision = [HIGHEST, HIGHEST] : (tensor<8x2x8x8xf32>, tensor<8x2x8x8xf32>) -> tensor<8x2x8x8xf32>
    %cst_13 = stablehlo.constant dense<0.353553385> : tensor<f32>
    %197 = stablehlo.broadcast_in_dim %cst_13, dims = [] : (tensor<f32>) -> tensor<8x2x8x8xf32>
    %198 = stablehlo.multiply %196, %197 : tensor<8x2x8x8xf32>
    %199 = stablehlo.iota dim = 0 : tensor<8x8xi32>
    %200 = stablehlo.iota dim = 1 : tensor<8x8xi32>
    %201 = stablehlo.compare LE, %200, %199, SIGNED : (tensor<8x8xi32>, tensor<8x8xi32>) -> tensor<8x8xi1>
    %cst_14 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %202 = call @_where(%201, %198, %cst_14) : (tensor<8x8xi1>, tensor<8x2x8x8xf32>, tensor<f32>) -> tensor<8x2x8x8xf32>
    %cst_15 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %203 = stablehlo.reduce(%202 init: %cst_15) applies stablehlo.maximum across dimensions = [3] : (tensor<8x2x8x8xf32>, tensor<f32>) -> tensor<8x2x8xf32>
    %204 = stablehlo.broadcast_in_dim %203, dims = [0, 1, 2] : (tensor<8x2x8xf32>) -> tensor<8x2x8x1xf32>
    %205 = stablehlo.broadcast_in_dim %204, dims = [0, 1, 2, 3] : (tensor<8x2x8x1xf32>) -> tensor<8x2x8x8xf32>
    %206 = stablehlo.subtract %202, %205 : tensor<8x2x8x8xf32>
    %207 = stablehlo.exponential %206 : tensor<8x2x8x8xf32>
    %cst_16 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %208 = stablehlo.reduce(%207 init: %cst_16) applies stablehlo.add across dimensions = [3] : (tensor<8x2x8x8xf32>, tensor<f32>) -> tensor<8x2x8xf32>
    %209 = stablehlo.broadcast_in_dim %208, dims = [0, 1, 2] : (tensor<8x2x8xf32>) -> tensor<8x2x8x1xf32>
    %210 = stablehlo.log %209 : tensor<8x2x8x1xf32>
    %211 = stablehlo.add %204, %210 : tensor<8x2x8x1xf32>
    %212 = stablehlo.reshape %211 : (tensor<8x2x8x1xf32>) -> tensor<8x2x8xf32>
    %213 = stablehlo.broadcast_in_dim %209, dims = [0, 1, 2, 3] : (tensor<8x2x8x1xf32>) -> tensor<8x2x8x8xf32>
    %214 = stablehlo.divide %207, %213 : tensor<8x2x8x8xf32>
    %215 = stablehlo.dot_general %214, %191, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [2], precision = [HIGHEST, HIGHEST] : (tensor<8x2x8x8xf32>, tensor<8x2x8x8xf32>) -> tensor<8x2x8x8xf32>
    %216 = stablehlo.broadcast_in_dim %193, dims = [] : (tensor<i64>) -> tensor<1xi64>
    %217 = stablehlo.broadcast_in_dim %195, dims = [] : (tensor<i64>) -> tensor<1xi64>
    %218 = stablehlo.concatenate %216, %217, dim = 0 : (tensor<1xi64>, tensor<1xi64>) -> tensor<2xi64>
    %219 = stablehlo.transpose %215, dims = [0, 2, 1, 3] : (tensor<8x2x8x8xf32>) -> tensor<8x8x2x8xf32>
    %220 = stablehlo.reshape %219 : (tensor<8x8x2x8xf32>) -> tensor<8x8x16xf32>
    %221 = stablehlo.reshape %220 : (tensor<8x8x16xf32>) -> tensor<64x16xf32>
    %222 = call @atleast_2d_0(%136) : (tensor<16x16xf32>) -> tensor<16x16xf32>
    %223 = stablehlo.transpose %222, dims = [1, 0] : (tensor<16x16xf32>) -> tensor<16x16xf32>
    %224 = stablehlo.dot_general %221, %223, contracting_dims = [1] x [0], precision = [HIGHEST, HIGHEST] : (tensor<64x16xf32>, tensor<16x16xf32>) -> tensor<64x16xf32>
    %225 = stablehlo.broadcast_in_dim %138, dims = [1] : (tensor<16xf32>) -> tensor<1x16xf32>
    %226 = stablehlo.broadcast_in_dim %225, dims = [0, 1] : (tensor<1x16xf32>) -> tensor<64x16xf32>
    %227 = stablehlo.add %226, %224 : tensor<64x16xf32>
    %228 = stablehlo.reshape %227 : (tensor<64x16xf32>) -> tensor<8x8x16xf32>
    %229 = stablehlo.add %66#12, %228 : tensor<8x8x16xf32>
    %cst_17 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %230 = stablehlo.reduce(%229 init: %cst_17) applies stablehlo.add across dimensions = [2] : (tensor<8x8x16xf32>, tensor<f32>) -> tensor<8x8xf32>
    %231 = stablehlo.broadcast_in_dim %230, dims = [0, 1] : (tensor<8x8xf32>) -> tensor<8x8x1xf32>
    %cst_18 = stablehlo.constant dense<1.600000e+01> : tensor<f32>
    %232 = stablehlo.broadcast_in_dim %cst_18, dims = [] : (tensor<f32>) -> tensor<8x8x1xf32>
    %233 = stablehlo.divide %231, %232 : tensor<8x8x1xf32>
    %234 = stablehlo.broadcast_in_dim %233, dims = [0, 1, 2] : (tensor<8x8x1xf32>) -> tensor<8x8x16xf32>
    %235 = stablehlo.subtract %229, %234 : tensor<8x8x16xf32>
    %236 = stablehlo.multiply %235, %235 : tensor<8x8x16xf32>
    %cst_19 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %237 = stablehlo.reduce(%236 init: %cst_19) applies stablehlo.add across dimensions = [2] : (tensor<8x8x16xf32>, tensor<f32>) -> tensor<8x8xf32>
    %238 = stablehlo.broadcast_in_dim %237, dims = [0, 1] : (tensor<8x8xf32>) -> tensor<8x8x1xf32>
    %cst_20 = stablehlo.constant dense<1.600000e+01> : tensor<f32>
    %239 = stablehlo.broadcast_in_dim %cst_20, dims = [] : (tensor<f32>) -> tensor<8x8x1xf32>
    %240 = stablehlo.divide %238, %239 : tensor<8x8x1xf32>
    %cst_21 = stablehlo.constant dense<9.99999974E-6> : tensor<f32>
    %241 = stablehlo.broadcast_in_dim %cst_21, dims = [] : (tensor<f32>) -> tensor<8x8x1xf32>
    %242 = stablehlo.add %240, %241 : tensor<8x8x1xf32>
    %243 = stablehlo.rsqrt %242 : tensor<8x8x1xf32>
    %244 = stablehlo.broadcast_in_dim %243, dims = [0, 1, 2] : (tensor<8x8x1xf32>) -> tensor<8x8x16xf32>
    %245 = stablehlo.multiply %235, %244 : tensor<8x8x16xf32>
    %246 = stablehlo.broadcast_in_dim %140, dims = [2] : (tensor<16xf32>) -> tensor<1x1x16xf32>
    %247 = stablehlo.broadcast_in_dim %246, dims = [0, 1, 2] : (tensor<1x1x16xf32>) -> tensor<8x8x16xf32>
    %248 = stablehlo.multiply %245, %247 : tensor<8x8x16xf32>
    %249 = stablehlo.broadcast_in_dim %142, dims = [2] : (tensor<16xf32>) -> tensor<1x1x16xf32>
    %250 = stablehlo.broadcast_in_dim %249, dims = [0, 1, 2] : (tensor<1x1x16xf32>) -> tensor<8x8x16xf32>
    %251 = stablehlo.add %248, %250 : tensor<8x8x16xf32>
    %252 = stablehlo.reshape %251 : (tensor<8x8x16xf32>) -> tensor<64x16xf32>
    %253 = call @atleast_2d_1(%144) : (tensor<64x16xf32>) -> tensor<64x16xf32>
    %254 = stablehlo.transpose %253, dims = [1, 0] : (tensor<64x16xf32>) -> tensor<16x64xf32>
    %255 = stablehlo.dot_general %252, %254, contracting_dims = [1] x [0], precision = [HIGHEST, HIGHEST] : (tensor<64x16xf32>, tensor<16x64xf32>) -> tensor<64x64xf32>
    %256 = stablehlo.broadcast_in_dim %146, dims = [1] : (tensor<64xf32>) -> tensor<1x64xf32>
    %257 = stablehlo.broadcast_in_dim %256, dims = [0, 1] : (tensor<1x64xf32>) -> tensor<64x64xf32>
    %258 = stablehlo.add %257, %255 : tensor<64x64xf32>
    %259 = stablehlo.reshape %258 : (tensor<64x64xf32>) -> tensor<8x8x64xf32>
    %cst_22 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %260 = stablehlo.broadcast_in_dim %cst_22, dims = [] : (tensor<f32>) -> tensor<8x8x64xf32>
    %261 = stablehlo.multiply %260, %259 : tensor<8x8x64xf32>
    %262 = stablehlo.multiply %259, %259 : tensor<8x8x64xf32>
    %263 = stablehlo.multiply %262, %259 : tensor<8x8x64xf32>
    %cst_23 = stablehlo.constant dense<4.471500e-02> : tensor<f32>
    %264 = stablehlo.broadcast_in_dim %cst_23, dims = [] : (tensor<f32>) -> tensor<8x8x64xf32>
    %265 = stablehlo.multiply %264, %263 : tensor<8x8x64xf32>
    %266 = stablehlo.add %259, %265 : tensor<8x8x64xf32>
    %cst_24 = stablehlo.constant dense<0.797884583> : tensor<f32>
    %267 = stablehlo.broadcast_in_dim %cst_24, dims = [] : (tensor<f32>) -> tensor<8x8x64xf32>
    %268 = stablehlo.multiply %267, %266 : tensor<8x8x64xf32>
    %269 = stablehlo.tanh %268 : tensor<8x8x64xf32>
    %cst_25 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %270 = stablehlo.broadcast_in_dim %cst_25, dims = [] : (tensor<f32>) -> tensor<8x8x64xf32>
    %271 = stablehlo.add %270, %269 : tensor<8x8x64xf32>
    %272 = stablehlo.multiply %261, %271 : tensor<8x8x64xf32>
    %273 = stablehlo.reshape %272 : (tensor<8x8x64xf32>) -> tensor<64x64xf32>
    %274 = call @atleast_2d_2(%149) : (tensor<16x64xf32>) -> tensor<16x64xf32>
    %275 = stablehlo.transpose %274, dims = [1, 0] : (tensor<16x64xf32>) -> tensor<64x16xf32>
    %276 = stablehlo.dot_general %273, %275, contracting_dims = [1] x [0], precision = [HIGHEST, HIGHEST] : (tensor<64x64xf32>, tensor<64x16xf32>) -> tensor<64x16xf32>
    %277 = stablehlo.broadcast_in_dim %151, dims = [1] : (tensor<16xf32>) -> tensor<1x16xf32>
    %278 = stablehlo.broadcast_in_dim %277, dims = [0, 1] : (tensor<1x16xf32>) -> tensor<64x16xf32>
    %279 = stablehlo.add %278, %276 : tensor<64x16xf32>
    %280 = stablehlo.reshape %279 : (tensor<64x16xf32>) -> tensor<8x8x16xf32>
    %281 = stablehlo.add %229, %280 : tensor<8x8x16xf32>
    %282 = sdy.sharding_constraint %281 <@mesh, [{"fsdp"}, {}, {}]> : tensor<8x8x16xf32>
    %cst_26 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %283 = stablehlo.reduce(%282 init: %cst_26) applies stablehlo.add across dimensions = [2] : (tensor<8x8x16xf32>, tensor<f32>) -> tensor<8x8xf32>
    %284 = stablehlo.broadcast_in_dim %283, dims = [0, 1] : (tensor<8x8xf32>) -> tensor<8x8x1xf32>
    %cst_27 = stablehlo.constant dense<1.600000e+01> : tensor<f32>
    %285 = stablehlo.broadcast_in_dim %cst_27, dims = [] : (tensor<f32>) -> tensor<8x8x1xf32>
    %286 = stablehlo.divide %284, %285 : tensor<8x8x1xf32>
    %287 = stablehlo.broadcast_in_dim %286, dims = [0, 1, 2] : (tensor<8x8x1xf32>) -> tensor<8x8x16xf32>
    %288 = stablehlo.subtract %282, %287 : tensor<8x8x16xf32>
    %289 = stablehlo.multiply %288, %288 : tensor<8x8x16xf32>
    %cst_28 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %290 = stablehlo.reduce(%289 init: %cst_28) applies stablehlo.add across dimensions = [2] : (tensor<8x8x16xf32>, tensor<f32>) -> tensor<8x8xf32>
    %291 = stablehlo.broadcast_in_dim %290, dims = [0, 1] : (tensor<8x8xf32>) -> tensor<8x8x1xf32>
    %cst_29 = stablehlo.constant dense<1.600000e+01> : tensor<f32>
    %292 = stablehlo.broadcast_in_dim %cst_29, dims = [] : (tensor<f32>) -> tensor<8x8x1xf32>
    %293 = stablehlo.divide %291, %292 : tensor<8x8x1xf32>
    %cst_30 = stablehlo.constant dense<9.99999974E-6> : tensor<f32>
    %294 = stablehlo.broadcast_in_dim %cst_30, dims = [] : (tensor<f32>) -> tensor<8x8x1xf32>
    %295 = stablehlo.add %293, %294 : tensor<8x8x1xf32>
    %296 = stablehlo.rsqrt %295 : tensor<8x8x1xf32>
    %297 = stablehlo.broadcast_in_dim %296, dims = [0, 1, 2] : (tensor<8x8x1xf32>) -> tensor<8x8x16xf32>
    %298 = stablehlo.multiply %288, %297 : tensor<8x8x16xf32>
    %299 = stablehlo.broadcast_in_dim %32, dims = [2] : (tensor<16xf32>) -> tensor<1x1x16xf32>
    %300 = stablehlo.broadcast_in_dim %299, dims = [0, 1, 2] : (tensor<1x1x16xf32>) -> tensor<8x8x16xf32>
    %301 = stablehlo.multiply %298, %300 : tensor<8x8x16xf32>
    %302 = stablehlo.broadcast_in_dim %34, dims = [2] : (tensor<16xf32>) -> tensor<1x1x16xf32>
    %303 = stablehlo.broadcast_in_dim %302, dims = [0, 1, 2] : (tensor<1x1x16xf32>) -> tensor<8x8x16xf32>
    %304 = stablehlo.add %301, %303 : tensor<8x8x16xf32>
    %305 = stablehlo.reshape %304 : (tensor<8x8x16xf32>) -> tensor<64x16xf32>
    %306 = call @atleast_2d_3(%36) : (tensor<32x16xf32>) -> tensor<32x16xf32>
    %307 = stablehlo.transpose %306, dims = [1, 0] : (tensor<32x16xf32>) -> tensor<16x32xf32>
    %308 = stablehlo.dot_general %305, %307, contracting_dims = [1] x [0], precision = [HIGHEST, HIGHEST] : (tensor<64x16xf32>, tensor<16x32xf32>) -> tensor<64x32xf32>
    %309 = stablehlo.reshape %308 : (tensor<64x32xf32>) -> tensor<8x8x32xf32>
    %310 = sdy.sharding_constraint %309 <@mesh, [{"fsdp"}, {}, {}]> : tensor<8x8x32xf32>
    %311 = stablehlo.reshape %310 : (tensor<8x8x32xf32>) -> tensor<64x32xf32>
    %312 = stablehlo.reshape %arg18 : (tensor<8x8xi64>) -> tensor<64xi64>
    %c_31 = stablehlo.constant dense<-100> : tensor<i64>
    %313 = stablehlo.broadcast_in_dim %c_31, dims = [] : (tensor<i64>) -> tensor<64xi64>
    %314 = stablehlo.compare NE, %312, %313, SIGNED : (tensor<64xi64>, tensor<64xi64>) -> tensor<64xi1>
    %c_32 = stablehlo.constant dense<0> : tensor<i64>
    %315 = call @_where_4(%314, %312, %c_32) : (tensor<64xi1>, tensor<64xi64>, tensor<i64>) -> tensor<64xi64>
    %cst_33 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %cst_34 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %316 = call @_where_5(%314, %cst_33, %cst_34) : (tensor<64xi1>, tensor<f32>, tensor<f32>) -> tensor<64xf32>
    %cst_35 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %317 = stablehlo.reduce(%311 init: %cst_35) applies stablehlo.maximum across dimensions = [1] : (tensor<64x32xf32>, tensor<f32>) -> tensor<64xf32>
    %cst_36 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %318 = stablehlo.broadcast_in_dim %cst_36, dims = [] : (tensor<f32>) -> tensor<64xf32>
    %319 = stablehlo.maximum %318, %317 : tensor<64xf32>
    %320 = stablehlo.broadcast_in_dim %319, dims = [0] : (tensor<64xf32>) -> tensor<64x1xf32>
    %321 = stablehlo.broadcast_in_dim %320, dims = [0, 1] : (tensor<64x1xf32>) -> tensor<64x32xf32>
    %322 = stablehlo.subtract %311, %321 : tensor<64x32xf32>
    %323 = stablehlo.exponential %322 : tensor<64x32xf32>
    %cst_37 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %324 = stablehlo.reduce(%323 init: %cst_37) applies stablehlo.add across dimensions = [1] : (tensor<64x32xf32>, tensor<f32>) -> tensor<64xf32>
    %325 = stablehlo.log %324 : tensor<64xf32>
    %326 = stablehlo.reshape %320 : (tensor<64x1xf32>) -> tensor<64xf32>
    %327 = stablehlo.broadcast_in_dim %315, dims = [0] : (tensor<64xi64>) -> tensor<64x1xi64>
    %328 = call @take_along_axis(%311, %327) : (tensor<64x32xf32>, tensor<64x1xi64>) -> tensor<64x1xf32>
    %329 = stablehlo.reshape %328 : (tensor<64x1xf32>) -> tensor<64xf32>
    %330 = stablehlo.subtract %329, %326 : tensor<64xf32>
    %331 = stablehlo.subtract %325, %330 : tensor<64xf32>
    %332 = stablehlo.multiply %316, %331 : tensor<64xf32>
    %c_38 = stablehlo.constant dense<-100> : tensor<i64>
    %333 = stablehlo.broadcast_in_dim %c_38, dims = [] : (tensor<i64>) -> tensor<64xi64>
    %334 = stablehlo.compare NE, %312, %333, SIGNED : (tensor<64xi64>, tensor<64xi64>) -> tensor<64xi1>
    %cst_39 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %335 = call @_where_6(%334, %332, %cst_39) : (tensor<64xi1>, tensor<64xf32>, tensor<f32>) -> tensor<64xf32>
    %cst_40 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %336 = stablehlo.reduce(%316 init: %cst_40) applies stablehlo.add across dimensions = [0] : (tensor<64xf32>, tensor<f32>) -> tensor<f32>
    %cst_41 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %337 = stablehlo.reduce(%335 init: %cst_41) applies stablehlo.add across dimensions = [0] : (tensor<64xf32>, tensor<f32>) -> tensor<f32>
    %338 = stablehlo.divide %337, %336 : tensor<f32>
    %339 = stablehlo.add %325, %326 : tensor<64xf32>
    %c_42 = stablehlo.constant dense<-100> : tensor<i64>
    %340 = stablehlo.broadcast_in_dim %c_42, dims = [] : (tensor<i64>) -> tensor<64xi64>
    %341 = stablehlo.compare NE, %312, %340, SIGNED : (tensor<64xi64>, tensor<64xi64>) -> tensor<64xi1>
    %c_43 = stablehlo.constant dense<0> : tensor<i64>
    %342 = call @_where_4(%341, %312, %c_43) : (tensor<64xi1>, tensor<64xi64>, tensor<i64>) -> tensor<64xi64>
    %cst_44 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %cst_45 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %343 = call @_where_5(%341, %cst_44, %cst_45) : (tensor<64xi1>, tensor<f32>, tensor<f32>) -> tensor<64xf32>
    %cst_46 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %344 = stablehlo.divide %cst_46, %336 : tensor<f32>
    %c_47 = stablehlo.constant dense<-100> : tensor<i64>
    %345 = stablehlo.broadcast_in_dim %c_47, dims = [] : (tensor<i64>) -> tensor<64xi64>
    %346 = stablehlo.compare NE, %312, %345, SIGNED : (tensor<64xi64>, tensor<64xi64>) -> tensor<64xi1>
    %cst_48 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %347 = call @_where_7(%346, %344, %cst_48) : (tensor<64xi1>, tensor<f32>, tensor<f32>) -> tensor<64xf32>
    %348 = stablehlo.multiply %343, %347 : tensor<64xf32>
    %349 = stablehlo.iota dim = 1 : tensor<64x32xi32>
    %350 = stablehlo.convert %342 : (tensor<64xi64>) -> tensor<64xi32>
    %351 = stablehlo.broadcast_in_dim %350, dims = [0] : (tensor<64xi32>) -> tensor<64x1xi32>
    %352 = stablehlo.broadcast_in_dim %351, dims = [0, 1] : (tensor<64x1xi32>) -> tensor<64x32xi32>
    %353 = stablehlo.compare EQ, %349, %352, SIGNED : (tensor<64x32xi32>, tensor<64x32xi32>) -> tensor<64x32xi1>
    %354 = stablehlo.broadcast_in_dim %348, dims = [0] : (tensor<64xf32>) -> tensor<64x1xf32>
    %355 = stablehlo.broadcast_in_dim %339, dims = [0] : (tensor<64xf32>) -> tensor<64x1xf32>
    %356 = stablehlo.broadcast_in_dim %355, dims = [0, 1] : (tensor<64x1xf32>) -> tensor<64x32xf32>
    %357 = stablehlo.subtract %311, %356 : tensor<64x32xf32>
    %358 = stablehlo.exponential %357 : tensor<64x32xf32>
    %359 = stablehlo.broadcast_in_dim %354, dims = [0, 1] : (tensor<64x1xf32>) -> tensor<64x32xf32>
    %360 = stablehlo.multiply %359, %358 : tensor<64x32xf32>
    %361 = stablehlo.broadcast_in_dim %348, dims = [0] : (tensor<64xf32>) -> tensor<64x1xf32>
    %cst_49 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %362 = call @_where_8(%353, %361, %cst_49) : (tensor<64x32xi1>, tensor<64x1xf32>, tensor<f32>) -> tensor<64x32xf32>
    %363 = stablehlo.subtract %360, %362 : tensor<64x32xf32>
    %364 = stablehlo.reshape %363 : (tensor<64x32xf32>) -> tensor<8x8x32xf32>
    %365 = stablehlo.reshape %304 : (tensor<8x8x16xf32>) -> tensor<64x16xf32>
    %366 = stablehlo.reshape %364 : (tensor<8x8x32xf32>) -> tensor<64x32xf32>
    %367 = stablehlo.dot_general %366, %36, contracting_dims = [1] x [0], precision = [HIGHEST, HIGHEST] : (tensor<64x32xf32>, tensor<32x16xf32>) -> tensor<64x16xf32>
    %368 = stablehlo.transpose %366, dims = [1, 0] : (tensor<64x32xf32>) -> tensor<32x64xf32>
    %369 = stablehlo.dot_general %368, %365, contracting_dims = [1] x [0], precision = [HIGHEST, HIGHEST] : (tensor<32x64xf32>, tensor<64x16xf32>) -> tensor<32x16xf32>
    %370 = stablehlo.reshape %367 : (tensor<64x16xf32>) -> tensor<8x8x16xf32>
    %371 = sdy.sharding_constraint %369 <@mesh, [{}, {}]> : tensor<32x16xf32>
    %372 = sdy.sharding_constraint %371 <@mesh, [{"fsdp"}, {}]> : tensor<32x16xf32>
    %373 = stablehlo.optimization_barrier %372 : tensor<32x16xf32>
    %374 = stablehlo.broadcast_in_dim %286, dims = [0, 1, 2] : (tensor<8x8x1xf32>) -> tensor<8x8x16xf32>
    %375 = stablehlo.subtract %282, %374 : tensor<8x8x16xf32>
    %376 = stablehlo.broadcast_in_dim %296, dims = [0, 1, 2] : (tensor<8x8x1xf32>) -> tensor<8x8x16xf32>
    %377 = stablehlo.multiply %375, %376 : tensor<8x8x16xf32>
    %378 = stablehlo.broadcast_in_dim %32, dims = [2] : (tensor<16xf32>) -> tensor<1x1x16xf32>
    %379 = stablehlo.broadcast_in_dim %378, dims = [0, 1, 2] : (tensor<1x1x16xf32>) -> tensor<8x8x16xf32>
    %380 = stablehlo.multiply %370, %379 : tensor<8x8x16xf32>
    %cst_50 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %381 = stablehlo.reduce(%380 init: %cst_50) applies stablehlo.add across dimensions = [2] : (tensor<8x8x16xf32>, tensor<f32>) -> tensor<8x8xf32>
    %382 = stablehlo.broadcast_in_dim %381, dims = [0, 1] : (tensor<8x8xf32>) -> tensor<8x8x1xf32>
    %cst_51 = stablehlo.constant dense<1.600000e+01> : tensor<f32>
    %383 = stablehlo.broadcast_in_dim %cst_51, dims = [] : (tensor<f32>) -> tensor<8x8x1xf32>
    %384 = stablehlo.divide %382, %383 : tensor<8x8x1xf32>
    %385 = stablehlo.multiply %380, %377 : tensor<8x8x16xf32>
    %cst_52 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %386 = stablehlo.reduce(%385 init: %cst_52) applies stablehlo.add across dimensions = [2] : (tensor<8x8x16xf32>, tensor<f32>) -> tensor<8x8xf32>
    %387 = stablehlo.broadcast_in_dim %386, dims = [0, 1] : (tensor<8x8xf32>) -> tensor<8x8x1xf32>
    %cst_53 = stablehlo.constant dense<1.600000e+01> : tensor<f32>
    %388 = stablehlo.broadcast_in_dim %cst_53, dims = [] : (tensor<f32>) -> tensor<8x8x1xf32>
    %389 = stablehlo.divide %387, %388 : tensor<8x8x1xf32>
    %390 = stablehlo.broadcast_in_dim %384, dims = [0, 1, 2] : (tensor<8x8x1xf32>) -> tensor<8x8x16xf32>
    %391 = stablehlo.subtract %380, %390 : tensor<8x8x16xf32>
    %392 = stablehlo.broadcast_in_dim %389, dims = [0, 1, 2] : (tensor<8x8x1xf32>) -> tensor<8x8x16xf32>
    %393 = stablehlo.multiply %377, %392 : tensor<8x8x16xf32>
    %394 = stablehlo.subtract %391, %393 : tensor<8x8x16xf32>
    %395 = stablehlo.broadcast_in_dim %296, dims = [0, 1, 2] : (tensor<8x8x1xf32>) -> tensor<8x8x16xf32>
    %396 = stablehlo.multiply %395, %394 : tensor<8x8x16xf32>
    %397 = stablehlo.multiply %370, %377 : tensor<8x8x16xf32>
    %cst_54 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %398 = stablehlo.reduce(%397 init: %cst_54) applies stablehlo.add across dimensions = [0, 1] : (tensor<8x8x16xf32>, tensor<f32>) -> tensor<16xf32>
    %cst_55 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %399 = stablehlo.reduce(%370 init: %cst_55) applies stablehlo.add across dimensions = [0, 1] : (tensor<8x8x16xf32>, tensor<f32>) -> tensor<16xf32>
    %400 = sdy.sharding_constraint %398 <@mesh, [{}]> : tensor<16xf32>
    %401 = sdy.sharding_constraint %400 <@mesh, [{"fsdp"}]> : tensor<16xf32>
    %402 = stablehlo.optimization_barrier %401 : tensor<16xf32>
    %403 = sdy.sharding_constraint %399 <@mesh, [{}]> : tensor<16xf32>
    %404 = sdy.sharding_constraint %403 <@mesh, [{"fsdp"}]> : tensor<16xf32>
    %405 = stablehlo.optimization_barrier %404 : tensor<16xf32>
    %406 = stablehlo.reshape %272 : (tensor<8x8x64xf32>) -> tensor<64x64xf32>
    %407 = stablehlo.reshape %396 : (tensor<8x8x16xf32>) -> tensor<64x16xf32>
    %408 = stablehlo.dot_general %407, %149, contracting_dims = [1] x [0], precision = [HIGHEST, HIGHEST] : (tensor<64x16xf32>, tensor<16x64xf32>) -> tensor<64x64xf32>
    %409 = stablehlo.transpose %407, dims = [1, 0] : (tensor<64x16xf32>) -> tensor<16x64xf32>
    %410 = stablehlo.dot_general %409, %406, contracting_dims = [1] x [0], precision = [HIGHEST, HIGHEST] : (tensor<16x64xf32>, tensor<64x64xf32>) -> tensor<16x64xf32>
    %cst_56 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %411 = stablehlo.reduce(%407 init: %cst_56) applies stablehlo.add across dimensions = [0] : (tensor<64x16xf32>, tensor<f32>) -> tensor<16xf32>
    %412 = stablehlo.reshape %408 : (tensor<64x64xf32>) -> tensor<8x8x64xf32>
    %413 = sdy.sharding_constraint %410 <@mesh, [{}, {}]> : tensor<16x64xf32>
    %414 = sdy.sharding_constraint %413 <@mesh, [{}, {"fsdp"}]> : tensor<16x64xf32>
    %415 = stablehlo.optimization_barrier %414 : tensor<16x64xf32>
    %416 = sdy.sharding_constraint %411 <@mesh, [{}]> : tensor<16xf32>
    %417 = sdy.sharding_constraint %416 <@mesh, [{"fsdp"}]> : tensor<16xf32>
    %418 = stablehlo.optimization_barrier %417 : tensor<16xf32>
    %419 = stablehlo.multiply %259, %259 : tensor<8x8x64xf32>
    %420 = stablehlo.multiply %419, %259 : tensor<8x8x64xf32>
    %cst_57 = stablehlo.constant dense<4.471500e-02> : tensor<f32>
    %421 = stablehlo.broadcast_in_dim %cst_57, dims = [] : (tensor<f32>) -> tensor<8x8x64xf32>
    %422 = stablehlo.multiply %421, %420 : tensor<8x8x64xf32>
    %423 = stablehlo.add %259, %422 : tensor<8x8x64xf32>
    %cst_58 = stablehlo.constant dense<0.797884583> : tensor<f32>
    %424 = stablehlo.broadcast_in_dim %cst_58, dims = [] : (tensor<f32>) -> tensor<8x8x64xf32>
    %425 = stablehlo.multiply %424, %423 : tensor<8x8x64xf32>
    %426 = stablehlo.tanh %425 : tensor<8x8x64xf32>
    %cst_59 = stablehlo.constant dense<1.341450e-01> : tensor<f32>
    %427 = stablehlo.broadcast_in_dim %cst_59, dims = [] : (tensor<f32>) -> tensor<8x8x64xf32>
    %428 = stablehlo.multiply %427, %419 : tensor<8x8x64xf32>
    %cst_60 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %429 = stablehlo.broadcast_in_dim %cst_60, dims = [] : (tensor<f32>) -> tensor<8x8x64xf32>
    %430 = stablehlo.add %429, %428 : tensor<8x8x64xf32>
    %cst_61 = stablehlo.constant dense<0.797884583> : tensor<f32>
    %431 = stablehlo.broadcast_in_dim %cst_61, dims = [] : (tensor<f32>) -> tensor<8x8x64xf32>
    %432 = stablehlo.multiply %431, %430 : tensor<8x8x64xf32>
    %cst_62 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %433 = stablehlo.broadcast_in_dim %cst_62, dims = [] : (tensor<f32>) -> tensor<8x8x64xf32>
    %434 = stablehlo.add %433, %426 : tensor<8x8x64xf32>
    %cst_63 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %435 = stablehlo.broadcast_in_dim %cst_63, dims = [] : (tensor<f32>) -> tensor<8x8x64xf32>
    %436 = stablehlo.multiply %435, %434 : tensor<8x8x64xf32>
    %cst_64 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %437 = stablehlo.broadcast_in_dim %cst_64, dims = [] : (tensor<f32>) -> tensor<8x8x64xf32>
    %438 = stablehlo.multiply %437, %259 : tensor<8x8x64xf32>
    %439 = stablehlo.multiply %426, %426 : tensor<8x8x64xf32>
    %cst_65 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %440 = stablehlo.broadcast_in_dim %cst_65, dims = [] : (tensor<f32>) -> tensor<8x8x64xf32>
    %441 = stablehlo.subtract %440, %439 : tensor<8x8x64xf32>
    %442 = stablehlo.multiply %438, %441 : tensor<8x8x64xf32>
    %443 = stablehlo.multiply %442, %432 : tensor<8x8x64xf32>
    %444 = stablehlo.add %436, %443 : tensor<8x8x64xf32>
    %445 = stablehlo.multiply %412, %444 : tensor<8x8x64xf32>
    %446 = stablehlo.reshape %251 : (tensor<8x8x16xf32>) -> tensor<64x16xf32>
    %447 = stablehlo.reshape %445 : (tensor<8x8x64xf32>) -> tensor<64x64xf32>
    %448 = stablehlo.dot_general %447, %144, contracting_dims = [1] x [0], precision = [HIGHEST, HIGHEST] : (tensor<64x64xf32>, tensor<64x16xf32>) -> tensor<64x16xf32>
    %449 = stablehlo.transpose %447, dims = [1, 0] : (tensor<64x64xf32>) -> tensor<64x64xf32>
    %450 = stablehlo.dot_general %449, %446, contracting_dims = [1] x [0], precision = [HIGHEST, HIGHEST] : (tensor<64x64xf32>, tensor<64x16xf32>) -> tensor<64x16xf32>
    %cst_66 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %451 = stablehlo.reduce(%447 init: %cst_66) applies stablehlo.add across dimensions = [0] : (tensor<64x64xf32>, tensor<f32>) -> tensor<64xf32>
    %452 = stablehlo.reshape %448 : (tensor<64x16xf32>) -> tensor<8x8x16xf32>
    %453 = sdy.sharding_constraint %450 <@mesh, [{}, {}]> : tensor<64x16xf32>
    %454 = sdy.sharding_constraint %453 <@mesh, [{"fsdp"}, {}]> : tensor<64x16xf32>
    %455 = stablehlo.optimization_barrier %454 : tensor<64x16xf32>
    %456 = sdy.sharding_constraint %451 <@mesh, [{}]> : tensor<64xf32>
    %457 = sdy.sharding_constraint %456 <@mesh, [{"fsdp"}]> : tensor<64xf32>
    %458 = stablehlo.optimization_barrier %457 : tensor<64xf32>
    %459 = stablehlo.broadcast_in_dim %233, dims = [0, 1, 2] : (tensor<8x8x1xf32>) -> tensor<8x8x16xf32>
    %460 = stablehlo.subtract %229, %459 : tensor<8x8x16xf32>
    %461 = stablehlo.broadcast_in_dim %243, dims = [0, 1, 2] : (tensor<8x8x1xf32>) -> tensor<8x8x16xf32>
    %462 = stablehlo.multiply %460, %461 : tensor<8x8x16xf32>
    %463 = stablehlo.broadcast_in_dim %140, dims = [2] : (tensor<16xf32>) -> tensor<1x1x16xf32>
    %464 = stablehlo.broadcast_in_dim %463, dims = [0, 1, 2] : (tensor<1x1x16xf32>) -> tensor<8x8x16xf32>
    %465 = stablehlo.multiply %452, %464 : tensor<8x8x16xf32>
    %cst_67 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %466 = stablehlo.reduce(%465 init: %cst_67) applies stablehlo.add across dimensions = [2] : (tensor<8x8x16xf32>, tensor<f32>) -> tensor<8x8xf32>
    %467 = stablehlo.broadcast_in_dim %466, dims = [0, 1] : (tensor<8x8xf32>) -> tensor<8x8x1xf32>
    %cst_68 = stablehlo.constant dense<1.600000e+01> : tensor<f32>
    %468 = stablehlo.broadcast_in_dim %cst_68, dims = [] : (tensor<f32>) -> tensor<8x8x1xf32>
    %469 = stablehlo.divide %467, %468 : tensor<8x8x1xf32>
    %470 = stablehlo.multiply %465, %462 : tensor<8x8x16xf32>
    %cst_69 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %471 = stablehlo.reduce(%470 init: %cst_69) applies stablehlo.add across dimensions = [2] : (tensor<8x8x16xf32>, tensor<f32>) -> tensor<8x8xf32>
    %472 = stablehlo.broadcast_in_dim %471, dims = [0, 1] : (tensor<8x8xf32>) -> tensor<8x8x1xf32>
    %cst_70 = stablehlo.constant dense<1.600000e+01> : tensor<f32>
    %473 = stablehlo.broadcast_in_dim %cst_70, dims = [] : (tensor<f32>) -> tensor<8x8x1xf32>
    %474 = stablehlo.divide %472, %473 : tensor<8x8x1xf32>
    %475 = stablehlo.broadcast_in_dim %469, dims = [0, 1, 2] : (tensor<8x8x1xf32>) -> tensor<8x8x16xf32>
    %476 = stablehlo.subtract %465, %475 : tensor<8x8x16xf32>
    %477 = stablehlo.broadcast_in_dim %474, dims = [0, 1, 2] : (tensor<8x8x1xf32>) -> tensor<8x8x16xf32>
    %478 = stablehlo.multiply %462, %477 : tensor<8x8x16xf32>
    %479 = stablehlo.subtract %476, %478 : tensor<8x8x16xf32>
    %480 = stablehlo.broadcast_in_dim %243, dims = [0, 1, 2] : (tensor<8x8x1xf32>) -> tensor<8x8x16xf32>
    %481 = stablehlo.multiply %480, %479 : tensor<8x8x16xf32>
    %482 = stablehlo.multiply %452, %462 : tensor<8x8x16xf32>
    %cst_71 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %483 = stablehlo.reduce(%482 init: %cst_71) applies stablehlo.add across dimensions = [0, 1] : (tensor<8x8x16xf32>, tensor<f32>) -> tensor<16xf32>
    %cst_72 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %484 = stablehlo.reduce(%452 init: %cst_72) applies stablehlo.add across dimensions = [0, 1] : (tensor<8x8x16xf32>, tensor<f32>) -> tensor<16xf32>
    %485 = stablehlo.add %396, %481 : tensor<8x8x16xf32>
    %486 = sdy.sharding_constraint %483 <@mesh, [{}]> : tensor<16xf32>
    %487 = sdy.sharding_constraint %486 <@mesh, [{"fsdp"}]> : tensor<16xf32>
    %488 = stablehlo.optimization_barrier %487 : tensor<16xf32>
    %489 = sdy.sharding_constraint %484 <@mesh, [{}]> : tensor<16xf32>
    %490 = sdy.sharding_constraint %489 <@mesh, [{"fsdp"}]> : tensor<16xf32>
    %491 = stablehlo.optimization_barrier %490 : tensor<16xf32>
    %492 = stablehlo.reshape %220 : (tensor<8x8x16xf32>) -> tensor<64x16xf32>
    %493 = stablehlo.reshape %485 : (tensor<8x8x16xf32>) -> tensor<64x16xf32>
    %494 = stablehlo.dot_general %493, %136, contracting_dims = [1] x [0], precision = [HIGHEST, HIGHEST] : (tensor<64x16xf32>, tensor<16x16xf32>) -> tensor<64x16xf32>
    %495 = stablehlo.transpose %493, dims = [1, 0] : (tensor<64x16xf32>) -> tensor<16x64xf32>
    %496 = stablehlo.dot_general %495, %492, contracting_dims = [1] x [0], precision = [HIGHEST, HIGHEST] : (tensor<16x64xf32>, tensor<64x16xf32>) -> tensor<16x16xf32>
    %cst_73 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %497 = stablehlo.reduce(%493 init: %cst_73) applies stablehlo.add across dimensions = [0] : (tensor<64x16xf32>, tensor<f32>) -> tensor<16xf32>
    %498 = stablehlo.reshape %494 : (tensor<64x16xf32>) -> tensor<8x8x16xf32>
    %499 = sdy.sharding_constraint %496 <@mesh, [{}, {}]> : tensor<16x16xf32>
    %500 = sdy.sharding_constraint %499 <@mesh, [{"fsdp"}, {}]> : tensor<16x16xf32>
    %501 = stablehlo.optimization_barrier %500 : tensor<16x16xf32>
    %502 = sdy.sharding_constraint %497 <@mesh, [{}]> : tensor<16xf32>
    %503 = sdy.sharding_constraint %502 <@mesh, [{"fsdp"}]> : tensor<16xf32>
    %504 = stablehlo.optimization_barrier %503 : tensor<16xf32>
    %505 = stablehlo.reshape %498 : (tensor<8x8x16xf32>) -> tensor<8x8x2x8xf32>
    %506 = stablehlo.transpose %505, dims = [0, 2, 1, 3] : (tensor<8x8x2x8xf32>) -> tensor<8x2x8x8xf32>
    %507 = stablehlo.dot_general %185, %188, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [3], precision = [HIGHEST, HIGHEST] : (tensor<8x2x8x8xf32>, tensor<8x2x8x8xf32>) -> tensor<8x2x8x8xf32>
    %cst_74 = stablehlo.constant dense<0.353553385> : tensor<f32>
    %508 = stablehlo.broadcast_in_dim %cst_74, dims = [] : (tensor<f32>) -> tensor<8x2x8x8xf32>
    %509 = stablehlo.multiply %507, %508 : tensor<8x2x8x8xf32>
    %510 = stablehlo.iota dim = 0 : tensor<8x8xi32>
    %511 = stablehlo.iota dim = 1 : tensor<8x8xi32>
    %512 = stablehlo.compare LE, %511, %510, SIGNED : (tensor<8x8xi32>, tensor<8x8xi32>) -> tensor<8x8xi1>
    %cst_75 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %513 = call @_where(%512, %509, %cst_75) : (tensor<8x8xi1>, tensor<8x2x8x8xf32>, tensor<f32>) -> tensor<8x2x8x8xf32>
    %cst_76 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %514 = stablehlo.reduce(%513 init: %cst_76) applies stablehlo.maximum across dimensions = [3] : (tensor<8x2x8x8xf32>, tensor<f32>) -> tensor<8x2x8xf32>
    %515 = stablehlo.broadcast_in_dim %514, dims = [0, 1, 2] : (tensor<8x2x8xf32>) -> tensor<8x2x8x1xf32>
    %516 = stablehlo.broadcast_in_dim %515, dims = [0, 1, 2, 3] : (tensor<8x2x8x1xf32>) -> tensor<8x2x8x8xf32>
    %517 = stablehlo.subtract %513, %516 : tensor<8x2x8x8xf32>
    %518 = stablehlo.exponential %517 : tensor<8x2x8x8xf32>
    %cst_77 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %519 = stablehlo.reduce(%518 init: %cst_77) applies stablehlo.add across dimensions = [3] : (tensor<8x2x8x8xf32>, tensor<f32>) -> tensor<8x2x8xf32>
    %520 = stablehlo.broadcast_in_dim %519, dims = [0, 1, 2] : (tensor<8x2x8xf32>) -> tensor<8x2x8x1xf32>
    %521 = stablehlo.log %520 : tensor<8x2x8x1xf32>
    %522 = stablehlo.add %515, %521 : tensor<8x2x8x1xf32>
    %523 = stablehlo.reshape %522 : (tensor<8x2x8x1xf32>) -> tensor<8x2x8xf32>
    %524 = stablehlo.broadcast_in_dim %520, dims = [0, 1, 2, 3] : (tensor<8x2x8x1xf32>) -> tensor<8x2x8x8xf32>
    %525 = stablehlo.divide %518, %524 : tensor<8x2x8x8xf32>
    %526 = stablehlo.dot_general %525, %506, batching_dims = [0, 1] x [0, 1], contracting_dims = [2] x [2], precision = [HIGHEST, HIGHEST] : (tensor<8x2x8x8xf32>, tensor<8x2x8x8xf32>) -> tensor<8x2x8x8xf32>
    %527 = stablehlo.dot_general %506, %191, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [3], precision = [HIGHEST, HIGHEST] : (tensor<8x2x8x8xf32>, tensor<8x2x8x8xf32>) -> tensor<8x2x8x8xf32>
    %528 = stablehlo.multiply %506, %215 : tensor<8x2x8x8xf32>
    %cst_78 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %529 = stablehlo.reduce(%528 init: %cst_78) applies stablehlo.add across dimensions = [3] : (tensor<8x2x8x8xf32>, tensor<f32>) -> tensor<8x2x8xf32>
    %530 = stablehlo.broadcast_in_dim %529, dims = [0, 1, 2] : (tensor<8x2x8xf32>) -> tensor<8x2x8x1xf32>
    %531 = stablehlo.broadcast_in_dim %530, dims = [0, 1, 2, 3] : (tensor<8x2x8x1xf32>) -> tensor<8x2x8x8xf32>
    %532 = stablehlo.subtract %527, %531 : tensor<8x2x8x8xf32>
    %533 = stablehlo.multiply %525, %532 : tensor<8x2x8x8xf32>
    %534 = stablehlo.dot_general %533, %188, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [2], precision = [HIGHEST, HIGHEST] : (tensor<8x2x8x8xf32>, tensor<8x2x8x8xf32>) -> tensor<8x2x8x8xf32>
    %cst_79 = stablehlo.constant dense<0.353553385> : tensor<f32>
    %535 = stablehlo.broadcast_in_dim %cst_79, dims = [] : (tensor<f32>) -> tensor<8x2x8x8xf32>
    %536 = stablehlo.multiply %535, %534 : tensor<8x2x8x8xf32>
    %537 = stablehlo.dot_general %533, %185, batching_dims = [0, 1] x [0, 1], contracting_dims = [2] x [2], precision = [HIGHEST, HIGHEST] : (tensor<8x2x8x8xf32>, tensor<8x2x8x8xf32>) -> tensor<8x2x8x8xf32>
    %cst_80 = stablehlo.constant dense<0.353553385> : tensor<f32>
    %538 = stablehlo.broadcast_in_dim %cst_80, dims = [] : (tensor<f32>) -> tensor<8x2x8x8xf32>
    %539 = stablehlo.multiply %538, %537 : tensor<8x2x8x8xf32>
    %540 = stablehlo.transpose %536, dims = [0, 2, 1, 3] : (tensor<8x2x8x8xf32>) -> tensor<8x8x2x8xf32>
    %541 = stablehlo.transpose %539, dims = [0, 2, 1, 3] : (tensor<8x2x8x8xf32>) -> tensor<8x8x2x8xf32>
    %542 = stablehlo.transpose %526, dims = [0, 2, 1, 3] : (tensor<8x2x8x8xf32>) -> tensor<8x8x2x8xf32>
    %543 = stablehlo.broadcast_in_dim %540, dims = [0, 1, 3, 4] : (tensor<8x8x2x8xf32>) -> tensor<8x8x1x2x8xf32>
    %544 = stablehlo.broadcast_in_dim %541, dims = [0, 1, 3, 4] : (tensor<8x8x2x8xf32>) -> tensor<8x8x1x2x8xf32>
    %545 = stablehlo.broadcast_in_dim %542, dims = [0, 1, 3, 4] : (tensor<8x8x2x8xf32>) -> tensor<8x8x1x2x8xf32>
    %546 = stablehlo.concatenate %543, %544, %545, dim = 2 : (tensor<8x8x1x2x8xf32>, tensor<8x8x1x2x8xf32>, tensor<8x8x1x2x8xf32>) -> tensor<8x8x3x2x8xf32>
    %547 = stablehlo.reshape %546 : (tensor<8x8x3x2x8xf32>) -> tensor<8x8x48xf32>
    %548 = stablehlo.reshape %173 : (tensor<8x8x16xf32>) -> tensor<64x16xf32>
    %549 = stablehlo.reshape %547 : (tensor<8x8x48xf32>) -> tensor<64x48xf32>
    %550 = stablehlo.dot_general %549, %132, contracting_dims = [1] x [0], precision = [HIGHEST, HIGHEST] : (tensor<64x48xf32>, tensor<48x16xf32>) -> tensor<64x16xf32>
    %551 = stablehlo.transpose %549, dims = [1, 0] : (tensor<64x48xf32>) -> tensor<48x64xf32>
    %552 = stablehlo.dot_general %551, %548, contracting_dims = [1] x [0], precision = [HIGHEST, HIGHEST] : (tensor<48x64xf32>, tensor<64x16xf32>) -> tensor<48x16xf32>
    %cst_81 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %553 = stablehlo.reduce(%549 init: %cst_81) applies stablehlo.add across dimensions = [0] : (tensor<64x48xf32>, tensor<f32>) -> tensor<48xf32>
    %554 = stablehlo.reshape %550 : (tensor<64x16xf32>) -> tensor<8x8x16xf32>
    %555 = sdy.sharding_constraint %552 <@mesh, [{}, {}]> : tensor<48x16xf32>
    %556 = sdy.sharding_constraint %555 <@mesh, [{"fsdp"}, {}]> : tensor<48x16xf32>
    %557 = stablehlo.optimization_barrier %556 : tensor<48x16xf32>
    %558 = sdy.sharding_constraint %553 <@mesh, [{}]> : tensor<48xf32>
    %559 = sdy.sharding_constraint %558 <@mesh, [{"fsdp"}]> : tensor<48xf32>
    %560 = stablehlo.optimization_barrier %559 : tensor<48xf32>
    %561 = stablehlo.broadcast_in_dim %155, dims = [0, 1, 2] : (tensor<8x8x1xf32>) -> tensor<8x8x16xf32>
    %562 = stablehlo.subtract %66#12, %561 : tensor<8x8x16xf32>
    %563 = stablehlo.broadcast_in_dim %165, dims = [0, 1, 2] : (tensor<8x8x1xf32>) -> tensor<8x8x16xf32>
    %564 = stablehlo.multiply %562, %563 : tensor<8x8x16xf32>
    %565 = stablehlo.broadcast_in_dim %128, dims = [2] : (tensor<16xf32>) -> tensor<1x1x16xf32>
    %566 = stablehlo.broadcast_in_dim %565, dims = [0, 1, 2] : (tensor<1x1x16xf32>) -> tensor<8x8x16xf32>
    %567 = stablehlo.multiply %554, %566 : tensor<8x8x16xf32>
    %cst_82 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %568 = stablehlo.reduce(%567 init: %cst_82) applies stablehlo.add across dimensions = [2] : (tensor<8x8x16xf32>, tensor<f32>) -> tensor<8x8xf32>
    %569 = stablehlo.broadcast_in_dim %568, dims = [0, 1] : (tensor<8x8xf32>) -> tensor<8x8x1xf32>
    %cst_83 = stablehlo.constant dense<1.600000e+01> : tensor<f32>
    %570 = stablehlo.broadcast_in_dim %cst_83, dims = [] : (tensor<f32>) -> tensor<8x8x1xf32>
    %571 = stablehlo.divide %569, %570 : tensor<8x8x1xf32>
    %572 = stablehlo.multiply %567, %564 : tensor<8x8x16xf32>
    %cst_84 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %573 = stablehlo.reduce(%572 init: %cst_84) applies stablehlo.add across dimensions = [2] : (tensor<8x8x16xf32>, tensor<f32>) -> tensor<8x8xf32>
    %574 = stablehlo.broadcast_in_dim %573, dims = [0, 1] : (tensor<8x8xf32>) -> tensor<8x8x1xf32>
    %cst_85 = stablehlo.constant dense<1.600000e+01> : tensor<f32>
    %575 = stablehlo.broadcast_in_dim %cst_85, dims = [] : (tensor<f32>) -> tensor<8x8x1xf32>
    %576 = stablehlo.divide %574, %575 : tensor<8x8x1xf32>
    %577 = stablehlo.broadcast_in_dim %571, dims = [0, 1, 2] : (tensor<8x8x1xf32>) -> tensor<8x8x16xf32>
    %578 = stablehlo.subtract %567, %577 : tensor<8x8x16xf32>
    %579 = stablehlo.broadcast_in_dim %576, dims = [0, 1, 2] : (tensor<8x8x1xf32>) -> tensor<8x8x16xf32>
    %580 = stablehlo.multiply %564, %579 : tensor<8x8x16xf32>
    %581 = stablehlo.subtract %578, %580 : tensor<8x8x16xf32>
    %582 = stablehlo.broadcast_in_dim %165, dims = [0, 1, 2] : (tensor<8x8x1xf32>) -> tensor<8x8x16xf32>
    %583 = stablehlo.multiply %582, %581 : tensor<8x8x16xf32>
    %584 = stablehlo.multiply %554, %564 : tensor<8x8x16xf32>
    %cst_86 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %585 = stablehlo.reduce(%584 init: %cst_86) applies stablehlo.add across dimensions = [0, 1] : (tensor<8x8x16xf32>, tensor<f32>) -> tensor<16xf32>
    %cst_87 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %586 = stablehlo.reduce(%554 init: %cst_87) applies stablehlo.add across dimensions = [0, 1] : (tensor<8x8x16xf32>, tensor<f32>) -> tensor<16xf32>
    %587 = stablehlo.add %485, %583 : tensor<8x8x16xf32>
    %588 = sdy.sharding_constraint %585 <@mesh, [{}]> : tensor<16xf32>
    %589 = sdy.sharding_constraint %588 <@mesh, [{"fsdp"}]> : tensor<16xf32>
    %590 = stablehlo.optimization_barrier %589 : tensor<16xf32>
    %591 = sdy.sharding_constraint %586 <@mesh, [{}]> : tensor<16xf32>
    %592 = sdy.sharding_constraint %591 <@mesh, [{"fsdp"}]> : tensor<16xf32>
    %593 = stablehlo.optimization_barrier %592 : tensor<16xf32>
    %cst_88 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %594 = stablehlo.reduce(%587 init: %cst_88) applies stablehlo.add across dimensions = [0] : (tensor<8x8x16xf32>, tensor<f32>) -> tensor<8x16xf32>
    %595 = stablehlo.broadcast_in_dim %594, dims = [1, 2] : (tensor<8x16xf32>) -> tensor<1x8x16xf32>
    %596 = stablehlo.reshape %595 : (tensor<1x8x16xf32>) -> tensor<8x16xf32>
    %cst_89 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %597 = stablehlo.broadcast_in_dim %cst_89, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %598 = stablehlo.convert %4 : (tensor<8xi64>) -> tensor<8xi32>
    %599 = stablehlo.broadcast_in_dim %598, dims = [0] : (tensor<8xi32>) -> tensor<8x1xi32>
    %600 = "stablehlo.scatter"(%597, %599, %596) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>, unique_indices = false}> ({
    ^bb0(%arg55: tensor<f32>, %arg56: tensor<f32>):
      %1342 = stablehlo.add %arg55, %arg56 : tensor<f32>
      stablehlo.return %1342 : tensor<f32>
    }) : (tensor<8x16xf32>, tensor<8x1xi32>, tensor<8x16xf32>) -> tensor<8x16xf32>
    %601 = sdy.sharding_constraint %600 <@mesh, [{}, {}]> : tensor<8x16xf32>
    %602 = sdy.sharding_constraint %601 <@mesh, [{}, {"fsdp"}]> : tensor<8x16xf32>
    %603 = stablehlo.optimization_barrier %602 : tensor<8x16xf32>
    %604 = stablehlo.reshape %arg5 : (tensor<8x8xi64>) -> tensor<64xi64>
    %605 = stablehlo.reshape %587 : (tensor<8x8x16xf32>) -> tensor<64x16xf32>
    %cst_90 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %606 = stablehlo.broadcast_in_dim %cst_90, dims = [] : (tensor<f32>) -> tensor<32x16xf32>
    %607 = stablehlo.convert %604 : (tensor<64xi64>) -> tensor<64xi32>
    %608 = stablehlo.broadcast_in_dim %607, dims = [0] : (tensor<64xi32>) -> tensor<64x1xi32>
    %609 = "stablehlo.scatter"(%606, %608, %605) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>, unique_indices = false}> ({
    ^bb0(%arg55: tensor<f32>, %arg56: tensor<f32>):
      %1342 = stablehlo.add %arg55, %arg56 : tensor<f32>
      stablehlo.return %1342 : tensor<f32>
    }) : (tensor<32x16xf32>, tensor<64x1xi32>, tensor<64x16xf32>) -> tensor<32x16xf32>
    %610 = sdy.sharding_constraint %609 <@mesh, [{}, {}]> : tensor<32x16xf32>
    %611 = sdy.sharding_constraint %610 <@mesh, [{"fsdp"}, {}]> : tensor<32x16xf32>
    %612 = stablehlo.optimization_barrier %611 : tensor<32x16xf32>
    %613 = stablehlo.reshape %612 : (tensor<32x16xf32>) -> tensor<8x4x16xf32>
    %614 = stablehlo.reshape %613 : (tensor<8x4x16xf32>) -> tensor<8x64xf32>
    %615 = sdy.sharding_constraint %614 <@mesh, [{"fsdp"}, {}]> : tensor<8x64xf32>
    %616 = chlo.square %615 : tensor<8x64xf32> -> tensor<8x64xf32>
    %cst_91 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %617 = stablehlo.reduce(%616 init: %cst_91) applies stablehlo.add across dimensions = [1] : (tensor<8x64xf32>, tensor<f32>) -> tensor<8xf32>
    %618 = stablehlo.broadcast_in_dim %617, dims = [0] : (tensor<8xf32>) -> tensor<8x1xf32>
    %619 = stablehlo.transpose %603, dims = [1, 0] : (tensor<8x16xf32>) -> tensor<16x8xf32>
    %620 = stablehlo.reshape %619 : (tensor<16x8xf32>) -> tensor<8x2x8xf32>
    %621 = stablehlo.reshape %620 : (tensor<8x2x8xf32>) -> tensor<8x16xf32>
    %622 = sdy.sharding_constraint %621 <@mesh, [{"fsdp"}, {}]> : tensor<8x16xf32>
    %623 = chlo.square %622 : tensor<8x16xf32> -> tensor<8x16xf32>
    %cst_92 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %624 = stablehlo.reduce(%623 init: %cst_92) applies stablehlo.add across dimensions = [1] : (tensor<8x16xf32>, tensor<f32>) -> tensor<8xf32>
    %625 = stablehlo.broadcast_in_dim %624, dims = [0] : (tensor<8xf32>) -> tensor<8x1xf32>
    %626 = stablehlo.reshape %590 : (tensor<16xf32>) -> tensor<16x1xf32>
    %627 = stablehlo.reshape %626 : (tensor<16x1xf32>) -> tensor<8x2x1xf32>
    %628 = stablehlo.reshape %627 : (tensor<8x2x1xf32>) -> tensor<8x2xf32>
    %629 = sdy.sharding_constraint %628 <@mesh, [{"fsdp"}, {}]> : tensor<8x2xf32>
    %630 = chlo.square %629 : tensor<8x2xf32> -> tensor<8x2xf32>
    %cst_93 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %631 = stablehlo.reduce(%630 init: %cst_93) applies stablehlo.add across dimensions = [1] : (tensor<8x2xf32>, tensor<f32>) -> tensor<8xf32>
    %632 = stablehlo.broadcast_in_dim %631, dims = [0] : (tensor<8xf32>) -> tensor<8x1xf32>
    %633 = stablehlo.reshape %593 : (tensor<16xf32>) -> tensor<16x1xf32>
    %634 = stablehlo.reshape %633 : (tensor<16x1xf32>) -> tensor<8x2x1xf32>
    %635 = stablehlo.reshape %634 : (tensor<8x2x1xf32>) -> tensor<8x2xf32>
    %636 = sdy.sharding_constraint %635 <@mesh, [{"fsdp"}, {}]> : tensor<8x2xf32>
    %637 = chlo.square %636 : tensor<8x2xf32> -> tensor<8x2xf32>
    %cst_94 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %638 = stablehlo.reduce(%637 init: %cst_94) applies stablehlo.add across dimensions = [1] : (tensor<8x2xf32>, tensor<f32>) -> tensor<8xf32>
    %639 = stablehlo.broadcast_in_dim %638, dims = [0] : (tensor<8xf32>) -> tensor<8x1xf32>
    %640 = stablehlo.reshape %557 : (tensor<48x16xf32>) -> tensor<8x6x16xf32>
    %641 = stablehlo.reshape %640 : (tensor<8x6x16xf32>) -> tensor<8x96xf32>
    %642 = sdy.sharding_constraint %641 <@mesh, [{"fsdp"}, {}]> : tensor<8x96xf32>
    %643 = chlo.square %642 : tensor<8x96xf32> -> tensor<8x96xf32>
    %cst_95 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %644 = stablehlo.reduce(%643 init: %cst_95) applies stablehlo.add across dimensions = [1] : (tensor<8x96xf32>, tensor<f32>) -> tensor<8xf32>
    %645 = stablehlo.broadcast_in_dim %644, dims = [0] : (tensor<8xf32>) -> tensor<8x1xf32>
    %646 = stablehlo.reshape %560 : (tensor<48xf32>) -> tensor<48x1xf32>
    %647 = stablehlo.reshape %646 : (tensor<48x1xf32>) -> tensor<8x6x1xf32>
    %648 = stablehlo.reshape %647 : (tensor<8x6x1xf32>) -> tensor<8x6xf32>
    %649 = sdy.sharding_constraint %648 <@mesh, [{"fsdp"}, {}]> : tensor<8x6xf32>
    %650 = chlo.square %649 : tensor<8x6xf32> -> tensor<8x6xf32>
    %cst_96 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %651 = stablehlo.reduce(%650 init: %cst_96) applies stablehlo.add across dimensions = [1] : (tensor<8x6xf32>, tensor<f32>) -> tensor<8xf32>
    %652 = stablehlo.broadcast_in_dim %651, dims = [0] : (tensor<8xf32>) -> tensor<8x1xf32>
    %653 = stablehlo.reshape %501 : (tensor<16x16xf32>) -> tensor<8x2x16xf32>
    %654 = stablehlo.reshape %653 : (tensor<8x2x16xf32>) -> tensor<8x32xf32>
    %655 = sdy.sharding_constraint %654 <@mesh, [{"fsdp"}, {}]> : tensor<8x32xf32>
    %656 = chlo.square %655 : tensor<8x32xf32> -> tensor<8x32xf32>
    %cst_97 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %657 = stablehlo.reduce(%656 init: %cst_97) applies stablehlo.add across dimensions = [1] : (tensor<8x32xf32>, tensor<f32>) -> tensor<8xf32>
    %658 = stablehlo.broadcast_in_dim %657, dims = [0] : (tensor<8xf32>) -> tensor<8x1xf32>
    %659 = stablehlo.reshape %504 : (tensor<16xf32>) -> tensor<16x1xf32>
    %660 = stablehlo.reshape %659 : (tensor<16x1xf32>) -> tensor<8x2x1xf32>
    %661 = stablehlo.reshape %660 : (tensor<8x2x1xf32>) -> tensor<8x2xf32>
    %662 = sdy.sharding_constraint %661 <@mesh, [{"fsdp"}, {}]> : tensor<8x2xf32>
    %663 = chlo.square %662 : tensor<8x2xf32> -> tensor<8x2xf32>
    %cst_98 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %664 = stablehlo.reduce(%663 init: %cst_98) applies stablehlo.add across dimensions = [1] : (tensor<8x2xf32>, tensor<f32>) -> tensor<8xf32>
    %665 = stablehlo.broadcast_in_dim %664, dims = [0] : (tensor<8xf32>) -> tensor<8x1xf32>
    %666 = stablehlo.reshape %488 : (tensor<16xf32>) -> tensor<16x1xf32>
    %667 = stablehlo.reshape %666 : (tensor<16x1xf32>) -> tensor<8x2x1xf32>
    %668 = stablehlo.reshape %667 : (tensor<8x2x1xf32>) -> tensor<8x2xf32>
    %669 = sdy.sharding_constraint %668 <@mesh, [{"fsdp"}, {}]> : tensor<8x2xf32>
    %670 = chlo.square %669 : tensor<8x2xf32> -> tensor<8x2xf32>
    %cst_99 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %671 = stablehlo.reduce(%670 init: %cst_99) applies stablehlo.add across dimensions = [1] : (tensor<8x2xf32>, tensor<f32>) -> tensor<8xf32>
    %672 = stablehlo.broadcast_in_dim %671, dims = [0] : (tensor<8xf32>) -> tensor<8x1xf32>
    %673 = stablehlo.reshape %491 : (tensor<16xf32>) -> tensor<16x1xf32>
    %674 = stablehlo.reshape %673 : (tensor<16x1xf32>) -> tensor<8x2x1xf32>
    %675 = stablehlo.reshape %674 : (tensor<8x2x1xf32>) -> tensor<8x2xf32>
    %676 = sdy.sharding_constraint %675 <@mesh, [{"fsdp"}, {}]> : tensor<8x2xf32>
    %677 = chlo.square %676 : tensor<8x2xf32> -> tensor<8x2xf32>
    %cst_100 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %678 = stablehlo.reduce(%677 init: %cst_100) applies stablehlo.add across dimensions = [1] : (tensor<8x2xf32>, tensor<f32>) -> tensor<8xf32>
    %679 = stablehlo.broadcast_in_dim %678, dims = [0] : (tensor<8xf32>) -> tensor<8x1xf32>
    %680 = stablehlo.reshape %455 : (tensor<64x16xf32>) -> tensor<8x8x16xf32>
    %681 = stablehlo.reshape %680 : (tensor<8x8x16xf32>) -> tensor<8x128xf32>
    %682 = sdy.sharding_constraint %681 <@mesh, [{"fsdp"}, {}]> : tensor<8x128xf32>
    %683 = chlo.square %682 : tensor<8x128xf32> -> tensor<8x128xf32>
    %cst_101 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %684 = stablehlo.reduce(%683 init: %cst_101) applies stablehlo.add across dimensions = [1] : (tensor<8x128xf32>, tensor<f32>) -> tensor<8xf32>
    %685 = stablehlo.broadcast_in_dim %684, dims = [0] : (tensor<8xf32>) -> tensor<8x1xf32>
    %686 = stablehlo.reshape %458 : (tensor<64xf32>) -> tensor<64x1xf32>
    %687 = stablehlo.reshape %686 : (tensor<64x1xf32>) -> tensor<8x8x1xf32>
    %688 = stablehlo.reshape %687 : (tensor<8x8x1xf32>) -> tensor<8x8xf32>
    %689 = sdy.sharding_constraint %688 <@mesh, [{"fsdp"}, {}]> : tensor<8x8xf32>
    %690 = chlo.square %689 : tensor<8x8xf32> -> tensor<8x8xf32>
    %cst_102 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %691 = stablehlo.reduce(%690 init: %cst_102) applies stablehlo.add across dimensions = [1] : (tensor<8x8xf32>, tensor<f32>) -> tensor<8xf32>
    %692 = stablehlo.broadcast_in_dim %691, dims = [0] : (tensor<8xf32>) -> tensor<8x1xf32>
    %693 = stablehlo.transpose %415, dims = [1, 0] : (tensor<16x64xf32>) -> tensor<64x16xf32>
    %694 = stablehlo.reshape %693 : (tensor<64x16xf32>) -> tensor<8x8x16xf32>
    %695 = stablehlo.reshape %694 : (tensor<8x8x16xf32>) -> tensor<8x128xf32>
    %696 = sdy.sharding_constraint %695 <@mesh, [{"fsdp"}, {}]> : tensor<8x128xf32>
    %697 = chlo.square %696 : tensor<8x128xf32> -> tensor<8x128xf32>
    %cst_103 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %698 = stablehlo.reduce(%697 init: %cst_103) applies stablehlo.add across dimensions = [1] : (tensor<8x128xf32>, tensor<f32>) -> tensor<8xf32>
    %699 = stablehlo.broadcast_in_dim %698, dims = [0] : (tensor<8xf32>) -> tensor<8x1xf32>
    %700 = stablehlo.reshape %418 : (tensor<16xf32>) -> tensor<16x1xf32>
    %701 = stablehlo.reshape %700 : (tensor<16x1xf32>) -> tensor<8x2x1xf32>
    %702 = stablehlo.reshape %701 : (tensor<8x2x1xf32>) -> tensor<8x2xf32>
    %703 = sdy.sharding_constraint %702 <@mesh, [{"fsdp"}, {}]> : tensor<8x2xf32>
    %704 = chlo.square %703 : tensor<8x2xf32> -> tensor<8x2xf32>
    %cst_104 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %705 = stablehlo.reduce(%704 init: %cst_104) applies stablehlo.add across dimensions = [1] : (tensor<8x2xf32>, tensor<f32>) -> tensor<8xf32>
    %706 = stablehlo.broadcast_in_dim %705, dims = [0] : (tensor<8xf32>) -> tensor<8x1xf32>
    %707 = stablehlo.reshape %402 : (tensor<16xf32>) -> tensor<16x1xf32>
    %708 = stablehlo.reshape %707 : (tensor<16x1xf32>) -> tensor<8x2x1xf32>
    %709 = stablehlo.reshape %708 : (tensor<8x2x1xf32>) -> tensor<8x2xf32>
    %710 = sdy.sharding_constraint %709 <@mesh, [{"fsdp"}, {}]> : tensor<8x2xf32>
    %711 = chlo.square %710 : tensor<8x2xf32> -> tensor<8x2xf32>
    %cst_105 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %712 = stablehlo.reduce(%711 init: %cst_105) applies stablehlo.add across dimensions = [1] : (tensor<8x2xf32>, tensor<f32>) -> tensor<8xf32>
    %713 = stablehlo.broadcast_in_dim %712, dims = [0] : (tensor<8xf32>) -> tensor<8x1xf32>
    %714 = stablehlo.reshape %405 : (tensor<16xf32>) -> tensor<16x1xf32>
    %715 = stablehlo.reshape %714 : (tensor<16x1xf32>) -> tensor<8x2x1xf32>
    %716 = stablehlo.reshape %715 : (tensor<8x2x1xf32>) -> tensor<8x2xf32>
    %717 = sdy.sharding_constraint %716 <@mesh, [{"fsdp"}, {}]> : tensor<8x2xf32>
    %718 = chlo.square %717 : tensor<8x2xf32> -> tensor<8x2xf32>
    %cst_106 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %719 = stablehlo.reduce(%718 init: %cst_106) applies stablehlo.add across dimensions = [1] : (tensor<8x2xf32>, tensor<f32>) -> tensor<8xf32>
    %720 = stablehlo.broadcast_in_dim %719, dims = [0] : (tensor<8xf32>) -> tensor<8x1xf32>
    %721 = stablehlo.reshape %373 : (tensor<32x16xf32>) -> tensor<8x4x16xf32>
    %722 = stablehlo.reshape %721 : (tensor<8x4x16xf32>) -> tensor<8x64xf32>
    %723 = sdy.sharding_constraint %722 <@mesh, [{"fsdp"}, {}]> : tensor<8x64xf32>
    %724 = chlo.square %723 : tensor<8x64xf32> -> tensor<8x64xf32>
    %cst_107 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %725 = stablehlo.reduce(%724 init: %cst_107) applies stablehlo.add across dimensions = [1] : (tensor<8x64xf32>, tensor<f32>) -> tensor<8xf32>
    %726 = stablehlo.broadcast_in_dim %725, dims = [0] : (tensor<8xf32>) -> tensor<8x1xf32>
    %727 = stablehlo.concatenate %618, %625, %632, %639, %645, %652, %658, %665, %672, %679, %685, %692, %699, %706, %713, %720, dim = 1 : (tensor<8x1xf32>, tensor<8x1xf32>, tensor<8x1xf32>, tensor<8x1xf32>, tensor<8x1xf32>, tensor<8x1xf32>, tensor<8x1xf32>, tensor<8x1xf32>, tensor<8x1xf32>, tensor<8x1xf32>, tensor<8x1xf32>, tensor<8x1xf32>, tensor<8x1xf32>, tensor<8x1xf32>, tensor<8x1xf32>, tensor<8x1xf32>) -> tensor<8x16xf32>
    %728 = stablehlo.concatenate %726, dim = 1 : (tensor<8x1xf32>) -> tensor<8x1xf32>
    %729 = stablehlo.concatenate %727, %728, dim = 1 : (tensor<8x16xf32>, tensor<8x1xf32>) -> tensor<8x17xf32>
    %730 = sdy.sharding_constraint %729 <@mesh, [{"fsdp"}, {}]> : tensor<8x17xf32>
    %cst_108 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %731 = stablehlo.reduce(%730 init: %cst_108) applies stablehlo.add across dimensions = [0] : (tensor<8x17xf32>, tensor<f32>) -> tensor<17xf32>
    %732 = stablehlo.sqrt %731 : tensor<17xf32>
    %733 = stablehlo.abs %732 : tensor<17xf32>
    %734 = stablehlo.multiply %733, %733 : tensor<17xf32>
    %cst_109 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %735 = stablehlo.reduce(%734 init: %cst_109) applies stablehlo.add across dimensions = [0] : (tensor<17xf32>, tensor<f32>) -> tensor<f32>
    %736 = stablehlo.sqrt %735 : tensor<f32>
    %737 = stablehlo.slice %arg53 [0:1] : (tensor<10xf64>) -> tensor<1xf64>
    %738 = stablehlo.reshape %737 : (tensor<1xf64>) -> tensor<f64>
    %739 = stablehlo.convert %738 : (tensor<f64>) -> tensor<f32>
    %740 = stablehlo.add %736, %739 : tensor<f32>
    %cst_110 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %741 = stablehlo.divide %cst_110, %740 : tensor<f32>
    %742 = stablehlo.slice %arg53 [1:2] : (tensor<10xf64>) -> tensor<1xf64>
    %743 = stablehlo.reshape %742 : (tensor<1xf64>) -> tensor<f64>
    %744 = stablehlo.convert %743 : (tensor<f64>) -> tensor<f32>
    %745 = stablehlo.multiply %741, %744 : tensor<f32>
    %746 = stablehlo.slice %arg53 [2:3] : (tensor<10xf64>) -> tensor<1xf64>
    %747 = stablehlo.reshape %746 : (tensor<1xf64>) -> tensor<f64>
    %748 = stablehlo.convert %747 : (tensor<f64>) -> tensor<f32>
    %749 = stablehlo.minimum %745, %748 : tensor<f32>
    %750 = stablehlo.broadcast_in_dim %749, dims = [] : (tensor<f32>) -> tensor<32x16xf32>
    %751 = stablehlo.multiply %612, %750 : tensor<32x16xf32>
    %752 = stablehlo.broadcast_in_dim %749, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %753 = stablehlo.multiply %603, %752 : tensor<8x16xf32>
    %754 = stablehlo.broadcast_in_dim %749, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %755 = stablehlo.multiply %590, %754 : tensor<16xf32>
    %756 = stablehlo.broadcast_in_dim %749, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %757 = stablehlo.multiply %593, %756 : tensor<16xf32>
    %758 = stablehlo.broadcast_in_dim %749, dims = [] : (tensor<f32>) -> tensor<48x16xf32>
    %759 = stablehlo.multiply %557, %758 : tensor<48x16xf32>
    %760 = stablehlo.broadcast_in_dim %749, dims = [] : (tensor<f32>) -> tensor<48xf32>
    %761 = stablehlo.multiply %560, %760 : tensor<48xf32>
    %762 = stablehlo.broadcast_in_dim %749, dims = [] : (tensor<f32>) -> tensor<16x16xf32>
    %763 = stablehlo.multiply %501, %762 : tensor<16x16xf32>
    %764 = stablehlo.broadcast_in_dim %749, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %765 = stablehlo.multiply %504, %764 : tensor<16xf32>
    %766 = stablehlo.broadcast_in_dim %749, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %767 = stablehlo.multiply %488, %766 : tensor<16xf32>
    %768 = stablehlo.broadcast_in_dim %749, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %769 = stablehlo.multiply %491, %768 : tensor<16xf32>
    %770 = stablehlo.broadcast_in_dim %749, dims = [] : (tensor<f32>) -> tensor<64x16xf32>
    %771 = stablehlo.multiply %455, %770 : tensor<64x16xf32>
    %772 = stablehlo.broadcast_in_dim %749, dims = [] : (tensor<f32>) -> tensor<64xf32>
    %773 = stablehlo.multiply %458, %772 : tensor<64xf32>
    %774 = stablehlo.broadcast_in_dim %749, dims = [] : (tensor<f32>) -> tensor<16x64xf32>
    %775 = stablehlo.multiply %415, %774 : tensor<16x64xf32>
    %776 = stablehlo.broadcast_in_dim %749, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %777 = stablehlo.multiply %418, %776 : tensor<16xf32>
    %778 = stablehlo.broadcast_in_dim %749, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %779 = stablehlo.multiply %402, %778 : tensor<16xf32>
    %780 = stablehlo.broadcast_in_dim %749, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %781 = stablehlo.multiply %405, %780 : tensor<16xf32>
    %782 = stablehlo.broadcast_in_dim %749, dims = [] : (tensor<f32>) -> tensor<32x16xf32>
    %783 = stablehlo.multiply %373, %782 : tensor<32x16xf32>
    %784 = stablehlo.slice %arg53 [3:4] : (tensor<10xf64>) -> tensor<1xf64>
    %785 = stablehlo.reshape %784 : (tensor<1xf64>) -> tensor<f64>
    %786 = stablehlo.convert %785 : (tensor<f64>) -> tensor<f32>
    %787 = stablehlo.broadcast_in_dim %786, dims = [] : (tensor<f32>) -> tensor<32x16xf32>
    %788 = stablehlo.multiply %arg0, %787 : tensor<32x16xf32>
    %789 = stablehlo.convert %785 : (tensor<f64>) -> tensor<f32>
    %790 = stablehlo.broadcast_in_dim %789, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %791 = stablehlo.multiply %arg1, %790 : tensor<8x16xf32>
    %792 = stablehlo.convert %785 : (tensor<f64>) -> tensor<f32>
    %793 = stablehlo.broadcast_in_dim %792, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %794 = stablehlo.multiply %arg6, %793 : tensor<16xf32>
    %795 = stablehlo.convert %785 : (tensor<f64>) -> tensor<f32>
    %796 = stablehlo.broadcast_in_dim %795, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %797 = stablehlo.multiply %arg7, %796 : tensor<16xf32>
    %798 = stablehlo.convert %785 : (tensor<f64>) -> tensor<f32>
    %799 = stablehlo.broadcast_in_dim %798, dims = [] : (tensor<f32>) -> tensor<48x16xf32>
    %800 = stablehlo.multiply %arg8, %799 : tensor<48x16xf32>
    %801 = stablehlo.convert %785 : (tensor<f64>) -> tensor<f32>
    %802 = stablehlo.broadcast_in_dim %801, dims = [] : (tensor<f32>) -> tensor<48xf32>
    %803 = stablehlo.multiply %arg9, %802 : tensor<48xf32>
    %804 = stablehlo.convert %785 : (tensor<f64>) -> tensor<f32>
    %805 = stablehlo.broadcast_in_dim %804, dims = [] : (tensor<f32>) -> tensor<16x16xf32>
    %806 = stablehlo.multiply %arg10, %805 : tensor<16x16xf32>
    %807 = stablehlo.convert %785 : (tensor<f64>) -> tensor<f32>
    %808 = stablehlo.broadcast_in_dim %807, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %809 = stablehlo.multiply %arg11, %808 : tensor<16xf32>
    %810 = stablehlo.convert %785 : (tensor<f64>) -> tensor<f32>
    %811 = stablehlo.broadcast_in_dim %810, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %812 = stablehlo.multiply %arg12, %811 : tensor<16xf32>
    %813 = stablehlo.convert %785 : (tensor<f64>) -> tensor<f32>
    %814 = stablehlo.broadcast_in_dim %813, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %815 = stablehlo.multiply %arg13, %814 : tensor<16xf32>
    %816 = stablehlo.convert %785 : (tensor<f64>) -> tensor<f32>
    %817 = stablehlo.broadcast_in_dim %816, dims = [] : (tensor<f32>) -> tensor<64x16xf32>
    %818 = stablehlo.multiply %arg14, %817 : tensor<64x16xf32>
    %819 = stablehlo.convert %785 : (tensor<f64>) -> tensor<f32>
    %820 = stablehlo.broadcast_in_dim %819, dims = [] : (tensor<f32>) -> tensor<64xf32>
    %821 = stablehlo.multiply %arg15, %820 : tensor<64xf32>
    %822 = stablehlo.convert %785 : (tensor<f64>) -> tensor<f32>
    %823 = stablehlo.broadcast_in_dim %822, dims = [] : (tensor<f32>) -> tensor<16x64xf32>
    %824 = stablehlo.multiply %arg16, %823 : tensor<16x64xf32>
    %825 = stablehlo.convert %785 : (tensor<f64>) -> tensor<f32>
    %826 = stablehlo.broadcast_in_dim %825, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %827 = stablehlo.multiply %arg17, %826 : tensor<16xf32>
    %828 = stablehlo.convert %785 : (tensor<f64>) -> tensor<f32>
    %829 = stablehlo.broadcast_in_dim %828, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %830 = stablehlo.multiply %arg2, %829 : tensor<16xf32>
    %831 = stablehlo.convert %785 : (tensor<f64>) -> tensor<f32>
    %832 = stablehlo.broadcast_in_dim %831, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %833 = stablehlo.multiply %arg3, %832 : tensor<16xf32>
    %834 = stablehlo.convert %785 : (tensor<f64>) -> tensor<f32>
    %835 = stablehlo.broadcast_in_dim %834, dims = [] : (tensor<f32>) -> tensor<32x16xf32>
    %836 = stablehlo.multiply %arg4, %835 : tensor<32x16xf32>
    %837 = stablehlo.slice %arg53 [4:5] : (tensor<10xf64>) -> tensor<1xf64>
    %838 = stablehlo.reshape %837 : (tensor<1xf64>) -> tensor<f64>
    %839 = stablehlo.convert %838 : (tensor<f64>) -> tensor<f32>
    %cst_111 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %840 = stablehlo.compare LT, %839, %cst_111, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %841 = call @_where_9(%840, %arg19, %751) : (tensor<i1>, tensor<32x16xf32>, tensor<32x16xf32>) -> tensor<32x16xf32>
    %cst_112 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %842 = stablehlo.subtract %839, %cst_112 : tensor<f32>
    %843 = call @_where_10(%840, %839, %842) : (tensor<i1>, tensor<f32>, tensor<f32>) -> tensor<f32>
    %844 = stablehlo.subtract %751, %arg19 : tensor<32x16xf32>
    %845 = stablehlo.broadcast_in_dim %843, dims = [] : (tensor<f32>) -> tensor<32x16xf32>
    %846 = stablehlo.multiply %845, %844 : tensor<32x16xf32>
    %847 = stablehlo.add %841, %846 : tensor<32x16xf32>
    %848 = stablehlo.convert %838 : (tensor<f64>) -> tensor<f32>
    %cst_113 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %849 = stablehlo.compare LT, %848, %cst_113, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %850 = call @_where_11(%849, %arg20, %753) : (tensor<i1>, tensor<8x16xf32>, tensor<8x16xf32>) -> tensor<8x16xf32>
    %cst_114 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %851 = stablehlo.subtract %848, %cst_114 : tensor<f32>
    %852 = call @_where_10(%849, %848, %851) : (tensor<i1>, tensor<f32>, tensor<f32>) -> tensor<f32>
    %853 = stablehlo.subtract %753, %arg20 : tensor<8x16xf32>
    %854 = stablehlo.broadcast_in_dim %852, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %855 = stablehlo.multiply %854, %853 : tensor<8x16xf32>
    %856 = stablehlo.add %850, %855 : tensor<8x16xf32>
    %857 = stablehlo.convert %838 : (tensor<f64>) -> tensor<f32>
    %cst_115 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %858 = stablehlo.compare LT, %857, %cst_115, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %859 = call @_where_12(%858, %arg21, %755) : (tensor<i1>, tensor<16xf32>, tensor<16xf32>) -> tensor<16xf32>
    %cst_116 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %860 = stablehlo.subtract %857, %cst_116 : tensor<f32>
    %861 = call @_where_10(%858, %857, %860) : (tensor<i1>, tensor<f32>, tensor<f32>) -> tensor<f32>
    %862 = stablehlo.subtract %755, %arg21 : tensor<16xf32>
    %863 = stablehlo.broadcast_in_dim %861, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %864 = stablehlo.multiply %863, %862 : tensor<16xf32>
    %865 = stablehlo.add %859, %864 : tensor<16xf32>
    %866 = stablehlo.convert %838 : (tensor<f64>) -> tensor<f32>
    %cst_117 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %867 = stablehlo.compare LT, %866, %cst_117, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %868 = call @_where_12(%867, %arg22, %757) : (tensor<i1>, tensor<16xf32>, tensor<16xf32>) -> tensor<16xf32>
    %cst_118 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %869 = stablehlo.subtract %866, %cst_118 : tensor<f32>
    %870 = call @_where_10(%867, %866, %869) : (tensor<i1>, tensor<f32>, tensor<f32>) -> tensor<f32>
    %871 = stablehlo.subtract %757, %arg22 : tensor<16xf32>
    %872 = stablehlo.broadcast_in_dim %870, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %873 = stablehlo.multiply %872, %871 : tensor<16xf32>
    %874 = stablehlo.add %868, %873 : tensor<16xf32>
    %875 = stablehlo.convert %838 : (tensor<f64>) -> tensor<f32>
    %cst_119 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %876 = stablehlo.compare LT, %875, %cst_119, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %877 = call @_where_13(%876, %arg23, %759) : (tensor<i1>, tensor<48x16xf32>, tensor<48x16xf32>) -> tensor<48x16xf32>
    %cst_120 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %878 = stablehlo.subtract %875, %cst_120 : tensor<f32>
    %879 = call @_where_10(%876, %875, %878) : (tensor<i1>, tensor<f32>, tensor<f32>) -> tensor<f32>
    %880 = stablehlo.subtract %759, %arg23 : tensor<48x16xf32>
    %881 = stablehlo.broadcast_in_dim %879, dims = [] : (tensor<f32>) -> tensor<48x16xf32>
    %882 = stablehlo.multiply %881, %880 : tensor<48x16xf32>
    %883 = stablehlo.add %877, %882 : tensor<48x16xf32>
    %884 = stablehlo.convert %838 : (tensor<f64>) -> tensor<f32>
    %cst_121 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %885 = stablehlo.compare LT, %884, %cst_121, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %886 = call @_where_14(%885, %arg24, %761) : (tensor<i1>, tensor<48xf32>, tensor<48xf32>) -> tensor<48xf32>
    %cst_122 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %887 = stablehlo.subtract %884, %cst_122 : tensor<f32>
    %888 = call @_where_10(%885, %884, %887) : (tensor<i1>, tensor<f32>, tensor<f32>) -> tensor<f32>
    %889 = stablehlo.subtract %761, %arg24 : tensor<48xf32>
    %890 = stablehlo.broadcast_in_dim %888, dims = [] : (tensor<f32>) -> tensor<48xf32>
    %891 = stablehlo.multiply %890, %889 : tensor<48xf32>
    %892 = stablehlo.add %886, %891 : tensor<48xf32>
    %893 = stablehlo.convert %838 : (tensor<f64>) -> tensor<f32>
    %cst_123 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %894 = stablehlo.compare LT, %893, %cst_123, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %895 = call @_where_15(%894, %arg25, %763) : (tensor<i1>, tensor<16x16xf32>, tensor<16x16xf32>) -> tensor<16x16xf32>
    %cst_124 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %896 = stablehlo.subtract %893, %cst_124 : tensor<f32>
    %897 = call @_where_10(%894, %893, %896) : (tensor<i1>, tensor<f32>, tensor<f32>) -> tensor<f32>
    %898 = stablehlo.subtract %763, %arg25 : tensor<16x16xf32>
    %899 = stablehlo.broadcast_in_dim %897, dims = [] : (tensor<f32>) -> tensor<16x16xf32>
    %900 = stablehlo.multiply %899, %898 : tensor<16x16xf32>
    %901 = stablehlo.add %895, %900 : tensor<16x16xf32>
    %902 = stablehlo.convert %838 : (tensor<f64>) -> tensor<f32>
    %cst_125 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %903 = stablehlo.compare LT, %902, %cst_125, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %904 = call @_where_12(%903, %arg26, %765) : (tensor<i1>, tensor<16xf32>, tensor<16xf32>) -> tensor<16xf32>
    %cst_126 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %905 = stablehlo.subtract %902, %cst_126 : tensor<f32>
    %906 = call @_where_10(%903, %902, %905) : (tensor<i1>, tensor<f32>, tensor<f32>) -> tensor<f32>
    %907 = stablehlo.subtract %765, %arg26 : tensor<16xf32>
    %908 = stablehlo.broadcast_in_dim %906, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %909 = stablehlo.multiply %908, %907 : tensor<16xf32>
    %910 = stablehlo.add %904, %909 : tensor<16xf32>
    %911 = stablehlo.convert %838 : (tensor<f64>) -> tensor<f32>
    %cst_127 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %912 = stablehlo.compare LT, %911, %cst_127, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %913 = call @_where_12(%912, %arg27, %767) : (tensor<i1>, tensor<16xf32>, tensor<16xf32>) -> tensor<16xf32>
    %cst_128 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %914 = stablehlo.subtract %911, %cst_128 : tensor<f32>
    %915 = call @_where_10(%912, %911, %914) : (tensor<i1>, tensor<f32>, tensor<f32>) -> tensor<f32>
    %916 = stablehlo.subtract %767, %arg27 : tensor<16xf32>
    %917 = stablehlo.broadcast_in_dim %915, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %918 = stablehlo.multiply %917, %916 : tensor<16xf32>
    %919 = stablehlo.add %913, %918 : tensor<16xf32>
    %920 = stablehlo.convert %838 : (tensor<f64>) -> tensor<f32>
    %cst_129 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %921 = stablehlo.compare LT, %920, %cst_129, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %922 = call @_where_12(%921, %arg28, %769) : (tensor<i1>, tensor<16xf32>, tensor<16xf32>) -> tensor<16xf32>
    %cst_130 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %923 = stablehlo.subtract %920, %cst_130 : tensor<f32>
    %924 = call @_where_10(%921, %920, %923) : (tensor<i1>, tensor<f32>, tensor<f32>) -> tensor<f32>
    %925 = stablehlo.subtract %769, %arg28 : tensor<16xf32>
    %926 = stablehlo.broadcast_in_dim %924, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %927 = stablehlo.multiply %926, %925 : tensor<16xf32>
    %928 = stablehlo.add %922, %927 : tensor<16xf32>
    %929 = stablehlo.convert %838 : (tensor<f64>) -> tensor<f32>
    %cst_131 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %930 = stablehlo.compare LT, %929, %cst_131, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %931 = call @_where_16(%930, %arg29, %771) : (tensor<i1>, tensor<64x16xf32>, tensor<64x16xf32>) -> tensor<64x16xf32>
    %cst_132 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %932 = stablehlo.subtract %929, %cst_132 : tensor<f32>
    %933 = call @_where_10(%930, %929, %932) : (tensor<i1>, tensor<f32>, tensor<f32>) -> tensor<f32>
    %934 = stablehlo.subtract %771, %arg29 : tensor<64x16xf32>
    %935 = stablehlo.broadcast_in_dim %933, dims = [] : (tensor<f32>) -> tensor<64x16xf32>
    %936 = stablehlo.multiply %935, %934 : tensor<64x16xf32>
    %937 = stablehlo.add %931, %936 : tensor<64x16xf32>
    %938 = stablehlo.convert %838 : (tensor<f64>) -> tensor<f32>
    %cst_133 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %939 = stablehlo.compare LT, %938, %cst_133, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %940 = call @_where_17(%939, %arg30, %773) : (tensor<i1>, tensor<64xf32>, tensor<64xf32>) -> tensor<64xf32>
    %cst_134 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %941 = stablehlo.subtract %938, %cst_134 : tensor<f32>
    %942 = call @_where_10(%939, %938, %941) : (tensor<i1>, tensor<f32>, tensor<f32>) -> tensor<f32>
    %943 = stablehlo.subtract %773, %arg30 : tensor<64xf32>
    %944 = stablehlo.broadcast_in_dim %942, dims = [] : (tensor<f32>) -> tensor<64xf32>
    %945 = stablehlo.multiply %944, %943 : tensor<64xf32>
    %946 = stablehlo.add %940, %945 : tensor<64xf32>
    %947 = stablehlo.convert %838 : (tensor<f64>) -> tensor<f32>
    %cst_135 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %948 = stablehlo.compare LT, %947, %cst_135, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %949 = call @_where_18(%948, %arg31, %775) : (tensor<i1>, tensor<16x64xf32>, tensor<16x64xf32>) -> tensor<16x64xf32>
    %cst_136 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %950 = stablehlo.subtract %947, %cst_136 : tensor<f32>
    %951 = call @_where_10(%948, %947, %950) : (tensor<i1>, tensor<f32>, tensor<f32>) -> tensor<f32>
    %952 = stablehlo.subtract %775, %arg31 : tensor<16x64xf32>
    %953 = stablehlo.broadcast_in_dim %951, dims = [] : (tensor<f32>) -> tensor<16x64xf32>
    %954 = stablehlo.multiply %953, %952 : tensor<16x64xf32>
    %955 = stablehlo.add %949, %954 : tensor<16x64xf32>
    %956 = stablehlo.convert %838 : (tensor<f64>) -> tensor<f32>
    %cst_137 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %957 = stablehlo.compare LT, %956, %cst_137, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %958 = call @_where_12(%957, %arg32, %777) : (tensor<i1>, tensor<16xf32>, tensor<16xf32>) -> tensor<16xf32>
    %cst_138 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %959 = stablehlo.subtract %956, %cst_138 : tensor<f32>
    %960 = call @_where_10(%957, %956, %959) : (tensor<i1>, tensor<f32>, tensor<f32>) -> tensor<f32>
    %961 = stablehlo.subtract %777, %arg32 : tensor<16xf32>
    %962 = stablehlo.broadcast_in_dim %960, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %963 = stablehlo.multiply %962, %961 : tensor<16xf32>
    %964 = stablehlo.add %958, %963 : tensor<16xf32>
    %965 = stablehlo.convert %838 : (tensor<f64>) -> tensor<f32>
    %cst_139 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %966 = stablehlo.compare LT, %965, %cst_139, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %967 = call @_where_12(%966, %arg33, %779) : (tensor<i1>, tensor<16xf32>, tensor<16xf32>) -> tensor<16xf32>
    %cst_140 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %968 = stablehlo.subtract %965, %cst_140 : tensor<f32>
    %969 = call @_where_10(%966, %965, %968) : (tensor<i1>, tensor<f32>, tensor<f32>) -> tensor<f32>
    %970 = stablehlo.subtract %779, %arg33 : tensor<16xf32>
    %971 = stablehlo.broadcast_in_dim %969, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %972 = stablehlo.multiply %971, %970 : tensor<16xf32>
    %973 = stablehlo.add %967, %972 : tensor<16xf32>
    %974 = stablehlo.convert %838 : (tensor<f64>) -> tensor<f32>
    %cst_141 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %975 = stablehlo.compare LT, %974, %cst_141, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %976 = call @_where_12(%975, %arg34, %781) : (tensor<i1>, tensor<16xf32>, tensor<16xf32>) -> tensor<16xf32>
    %cst_142 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %977 = stablehlo.subtract %974, %cst_142 : tensor<f32>
    %978 = call @_where_10(%975, %974, %977) : (tensor<i1>, tensor<f32>, tensor<f32>) -> tensor<f32>
    %979 = stablehlo.subtract %781, %arg34 : tensor<16xf32>
    %980 = stablehlo.broadcast_in_dim %978, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %981 = stablehlo.multiply %980, %979 : tensor<16xf32>
    %982 = stablehlo.add %976, %981 : tensor<16xf32>
    %983 = stablehlo.convert %838 : (tensor<f64>) -> tensor<f32>
    %cst_143 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %984 = stablehlo.compare LT, %983, %cst_143, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %985 = call @_where_9(%984, %arg35, %783) : (tensor<i1>, tensor<32x16xf32>, tensor<32x16xf32>) -> tensor<32x16xf32>
    %cst_144 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %986 = stablehlo.subtract %983, %cst_144 : tensor<f32>
    %987 = call @_where_10(%984, %983, %986) : (tensor<i1>, tensor<f32>, tensor<f32>) -> tensor<f32>
    %988 = stablehlo.subtract %783, %arg35 : tensor<32x16xf32>
    %989 = stablehlo.broadcast_in_dim %987, dims = [] : (tensor<f32>) -> tensor<32x16xf32>
    %990 = stablehlo.multiply %989, %988 : tensor<32x16xf32>
    %991 = stablehlo.add %985, %990 : tensor<32x16xf32>
    %992 = stablehlo.slice %arg53 [5:6] : (tensor<10xf64>) -> tensor<1xf64>
    %993 = stablehlo.reshape %992 : (tensor<1xf64>) -> tensor<f64>
    %994 = stablehlo.convert %993 : (tensor<f64>) -> tensor<f32>
    %995 = stablehlo.broadcast_in_dim %994, dims = [] : (tensor<f32>) -> tensor<32x16xf32>
    %996 = stablehlo.multiply %arg36, %995 : tensor<32x16xf32>
    %997 = stablehlo.convert %993 : (tensor<f64>) -> tensor<f32>
    %998 = stablehlo.broadcast_in_dim %997, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %999 = stablehlo.multiply %arg37, %998 : tensor<8x16xf32>
    %1000 = stablehlo.convert %993 : (tensor<f64>) -> tensor<f32>
    %1001 = stablehlo.broadcast_in_dim %1000, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1002 = stablehlo.multiply %arg38, %1001 : tensor<16xf32>
    %1003 = stablehlo.convert %993 : (tensor<f64>) -> tensor<f32>
    %1004 = stablehlo.broadcast_in_dim %1003, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1005 = stablehlo.multiply %arg39, %1004 : tensor<16xf32>
    %1006 = stablehlo.convert %993 : (tensor<f64>) -> tensor<f32>
    %1007 = stablehlo.broadcast_in_dim %1006, dims = [] : (tensor<f32>) -> tensor<48x16xf32>
    %1008 = stablehlo.multiply %arg40, %1007 : tensor<48x16xf32>
    %1009 = stablehlo.convert %993 : (tensor<f64>) -> tensor<f32>
    %1010 = stablehlo.broadcast_in_dim %1009, dims = [] : (tensor<f32>) -> tensor<48xf32>
    %1011 = stablehlo.multiply %arg41, %1010 : tensor<48xf32>
    %1012 = stablehlo.convert %993 : (tensor<f64>) -> tensor<f32>
    %1013 = stablehlo.broadcast_in_dim %1012, dims = [] : (tensor<f32>) -> tensor<16x16xf32>
    %1014 = stablehlo.multiply %arg42, %1013 : tensor<16x16xf32>
    %1015 = stablehlo.convert %993 : (tensor<f64>) -> tensor<f32>
    %1016 = stablehlo.broadcast_in_dim %1015, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1017 = stablehlo.multiply %arg43, %1016 : tensor<16xf32>
    %1018 = stablehlo.convert %993 : (tensor<f64>) -> tensor<f32>
    %1019 = stablehlo.broadcast_in_dim %1018, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1020 = stablehlo.multiply %arg44, %1019 : tensor<16xf32>
    %1021 = stablehlo.convert %993 : (tensor<f64>) -> tensor<f32>
    %1022 = stablehlo.broadcast_in_dim %1021, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1023 = stablehlo.multiply %arg45, %1022 : tensor<16xf32>
    %1024 = stablehlo.convert %993 : (tensor<f64>) -> tensor<f32>
    %1025 = stablehlo.broadcast_in_dim %1024, dims = [] : (tensor<f32>) -> tensor<64x16xf32>
    %1026 = stablehlo.multiply %arg46, %1025 : tensor<64x16xf32>
    %1027 = stablehlo.convert %993 : (tensor<f64>) -> tensor<f32>
    %1028 = stablehlo.broadcast_in_dim %1027, dims = [] : (tensor<f32>) -> tensor<64xf32>
    %1029 = stablehlo.multiply %arg47, %1028 : tensor<64xf32>
    %1030 = stablehlo.convert %993 : (tensor<f64>) -> tensor<f32>
    %1031 = stablehlo.broadcast_in_dim %1030, dims = [] : (tensor<f32>) -> tensor<16x64xf32>
    %1032 = stablehlo.multiply %arg48, %1031 : tensor<16x64xf32>
    %1033 = stablehlo.convert %993 : (tensor<f64>) -> tensor<f32>
    %1034 = stablehlo.broadcast_in_dim %1033, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1035 = stablehlo.multiply %arg49, %1034 : tensor<16xf32>
    %1036 = stablehlo.convert %993 : (tensor<f64>) -> tensor<f32>
    %1037 = stablehlo.broadcast_in_dim %1036, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1038 = stablehlo.multiply %arg50, %1037 : tensor<16xf32>
    %1039 = stablehlo.convert %993 : (tensor<f64>) -> tensor<f32>
    %1040 = stablehlo.broadcast_in_dim %1039, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1041 = stablehlo.multiply %arg51, %1040 : tensor<16xf32>
    %1042 = stablehlo.convert %993 : (tensor<f64>) -> tensor<f32>
    %1043 = stablehlo.broadcast_in_dim %1042, dims = [] : (tensor<f32>) -> tensor<32x16xf32>
    %1044 = stablehlo.multiply %arg52, %1043 : tensor<32x16xf32>
    %1045 = stablehlo.slice %arg53 [6:7] : (tensor<10xf64>) -> tensor<1xf64>
    %1046 = stablehlo.reshape %1045 : (tensor<1xf64>) -> tensor<f64>
    %1047 = stablehlo.convert %1046 : (tensor<f64>) -> tensor<f32>
    %1048 = stablehlo.broadcast_in_dim %1047, dims = [] : (tensor<f32>) -> tensor<32x16xf32>
    %1049 = stablehlo.multiply %1048, %751 : tensor<32x16xf32>
    %1050 = stablehlo.multiply %1049, %751 : tensor<32x16xf32>
    %1051 = stablehlo.add %996, %1050 : tensor<32x16xf32>
    %1052 = stablehlo.convert %1046 : (tensor<f64>) -> tensor<f32>
    %1053 = stablehlo.broadcast_in_dim %1052, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %1054 = stablehlo.multiply %1053, %753 : tensor<8x16xf32>
    %1055 = stablehlo.multiply %1054, %753 : tensor<8x16xf32>
    %1056 = stablehlo.add %999, %1055 : tensor<8x16xf32>
    %1057 = stablehlo.convert %1046 : (tensor<f64>) -> tensor<f32>
    %1058 = stablehlo.broadcast_in_dim %1057, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1059 = stablehlo.multiply %1058, %755 : tensor<16xf32>
    %1060 = stablehlo.multiply %1059, %755 : tensor<16xf32>
    %1061 = stablehlo.add %1002, %1060 : tensor<16xf32>
    %1062 = stablehlo.convert %1046 : (tensor<f64>) -> tensor<f32>
    %1063 = stablehlo.broadcast_in_dim %1062, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1064 = stablehlo.multiply %1063, %757 : tensor<16xf32>
    %1065 = stablehlo.multiply %1064, %757 : tensor<16xf32>
    %1066 = stablehlo.add %1005, %1065 : tensor<16xf32>
    %1067 = stablehlo.convert %1046 : (tensor<f64>) -> tensor<f32>
    %1068 = stablehlo.broadcast_in_dim %1067, dims = [] : (tensor<f32>) -> tensor<48x16xf32>
    %1069 = stablehlo.multiply %1068, %759 : tensor<48x16xf32>
    %1070 = stablehlo.multiply %1069, %759 : tensor<48x16xf32>
    %1071 = stablehlo.add %1008, %1070 : tensor<48x16xf32>
    %1072 = stablehlo.convert %1046 : (tensor<f64>) -> tensor<f32>
    %1073 = stablehlo.broadcast_in_dim %1072, dims = [] : (tensor<f32>) -> tensor<48xf32>
    %1074 = stablehlo.multiply %1073, %761 : tensor<48xf32>
    %1075 = stablehlo.multiply %1074, %761 : tensor<48xf32>
    %1076 = stablehlo.add %1011, %1075 : tensor<48xf32>
    %1077 = stablehlo.convert %1046 : (tensor<f64>) -> tensor<f32>
    %1078 = stablehlo.broadcast_in_dim %1077, dims = [] : (tensor<f32>) -> tensor<16x16xf32>
    %1079 = stablehlo.multiply %1078, %763 : tensor<16x16xf32>
    %1080 = stablehlo.multiply %1079, %763 : tensor<16x16xf32>
    %1081 = stablehlo.add %1014, %1080 : tensor<16x16xf32>
    %1082 = stablehlo.convert %1046 : (tensor<f64>) -> tensor<f32>
    %1083 = stablehlo.broadcast_in_dim %1082, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1084 = stablehlo.multiply %1083, %765 : tensor<16xf32>
    %1085 = stablehlo.multiply %1084, %765 : tensor<16xf32>
    %1086 = stablehlo.add %1017, %1085 : tensor<16xf32>
    %1087 = stablehlo.convert %1046 : (tensor<f64>) -> tensor<f32>
    %1088 = stablehlo.broadcast_in_dim %1087, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1089 = stablehlo.multiply %1088, %767 : tensor<16xf32>
    %1090 = stablehlo.multiply %1089, %767 : tensor<16xf32>
    %1091 = stablehlo.add %1020, %1090 : tensor<16xf32>
    %1092 = stablehlo.convert %1046 : (tensor<f64>) -> tensor<f32>
    %1093 = stablehlo.broadcast_in_dim %1092, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1094 = stablehlo.multiply %1093, %769 : tensor<16xf32>
    %1095 = stablehlo.multiply %1094, %769 : tensor<16xf32>
    %1096 = stablehlo.add %1023, %1095 : tensor<16xf32>
    %1097 = stablehlo.convert %1046 : (tensor<f64>) -> tensor<f32>
    %1098 = stablehlo.broadcast_in_dim %1097, dims = [] : (tensor<f32>) -> tensor<64x16xf32>
    %1099 = stablehlo.multiply %1098, %771 : tensor<64x16xf32>
    %1100 = stablehlo.multiply %1099, %771 : tensor<64x16xf32>
    %1101 = stablehlo.add %1026, %1100 : tensor<64x16xf32>
    %1102 = stablehlo.convert %1046 : (tensor<f64>) -> tensor<f32>
    %1103 = stablehlo.broadcast_in_dim %1102, dims = [] : (tensor<f32>) -> tensor<64xf32>
    %1104 = stablehlo.multiply %1103, %773 : tensor<64xf32>
    %1105 = stablehlo.multiply %1104, %773 : tensor<64xf32>
    %1106 = stablehlo.add %1029, %1105 : tensor<64xf32>
    %1107 = stablehlo.convert %1046 : (tensor<f64>) -> tensor<f32>
    %1108 = stablehlo.broadcast_in_dim %1107, dims = [] : (tensor<f32>) -> tensor<16x64xf32>
    %1109 = stablehlo.multiply %1108, %775 : tensor<16x64xf32>
    %1110 = stablehlo.multiply %1109, %775 : tensor<16x64xf32>
    %1111 = stablehlo.add %1032, %1110 : tensor<16x64xf32>
    %1112 = stablehlo.convert %1046 : (tensor<f64>) -> tensor<f32>
    %1113 = stablehlo.broadcast_in_dim %1112, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1114 = stablehlo.multiply %1113, %777 : tensor<16xf32>
    %1115 = stablehlo.multiply %1114, %777 : tensor<16xf32>
    %1116 = stablehlo.add %1035, %1115 : tensor<16xf32>
    %1117 = stablehlo.convert %1046 : (tensor<f64>) -> tensor<f32>
    %1118 = stablehlo.broadcast_in_dim %1117, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1119 = stablehlo.multiply %1118, %779 : tensor<16xf32>
    %1120 = stablehlo.multiply %1119, %779 : tensor<16xf32>
    %1121 = stablehlo.add %1038, %1120 : tensor<16xf32>
    %1122 = stablehlo.convert %1046 : (tensor<f64>) -> tensor<f32>
    %1123 = stablehlo.broadcast_in_dim %1122, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1124 = stablehlo.multiply %1123, %781 : tensor<16xf32>
    %1125 = stablehlo.multiply %1124, %781 : tensor<16xf32>
    %1126 = stablehlo.add %1041, %1125 : tensor<16xf32>
    %1127 = stablehlo.convert %1046 : (tensor<f64>) -> tensor<f32>
    %1128 = stablehlo.broadcast_in_dim %1127, dims = [] : (tensor<f32>) -> tensor<32x16xf32>
    %1129 = stablehlo.multiply %1128, %783 : tensor<32x16xf32>
    %1130 = stablehlo.multiply %1129, %783 : tensor<32x16xf32>
    %1131 = stablehlo.add %1044, %1130 : tensor<32x16xf32>
    %1132 = stablehlo.sqrt %1051 : tensor<32x16xf32>
    %1133 = stablehlo.sqrt %1056 : tensor<8x16xf32>
    %1134 = stablehlo.sqrt %1061 : tensor<16xf32>
    %1135 = stablehlo.sqrt %1066 : tensor<16xf32>
    %1136 = stablehlo.sqrt %1071 : tensor<48x16xf32>
    %1137 = stablehlo.sqrt %1076 : tensor<48xf32>
    %1138 = stablehlo.sqrt %1081 : tensor<16x16xf32>
    %1139 = stablehlo.sqrt %1086 : tensor<16xf32>
    %1140 = stablehlo.sqrt %1091 : tensor<16xf32>
    %1141 = stablehlo.sqrt %1096 : tensor<16xf32>
    %1142 = stablehlo.sqrt %1101 : tensor<64x16xf32>
    %1143 = stablehlo.sqrt %1106 : tensor<64xf32>
    %1144 = stablehlo.sqrt %1111 : tensor<16x64xf32>
    %1145 = stablehlo.sqrt %1116 : tensor<16xf32>
    %1146 = stablehlo.sqrt %1121 : tensor<16xf32>
    %1147 = stablehlo.sqrt %1126 : tensor<16xf32>
    %1148 = stablehlo.sqrt %1131 : tensor<32x16xf32>
    %1149 = stablehlo.slice %arg53 [7:8] : (tensor<10xf64>) -> tensor<1xf64>
    %1150 = stablehlo.reshape %1149 : (tensor<1xf64>) -> tensor<f64>
    %1151 = stablehlo.convert %1150 : (tensor<f64>) -> tensor<f32>
    %1152 = stablehlo.broadcast_in_dim %1151, dims = [] : (tensor<f32>) -> tensor<32x16xf32>
    %1153 = stablehlo.divide %1132, %1152 : tensor<32x16xf32>
    %1154 = stablehlo.convert %1150 : (tensor<f64>) -> tensor<f32>
    %1155 = stablehlo.broadcast_in_dim %1154, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %1156 = stablehlo.divide %1133, %1155 : tensor<8x16xf32>
    %1157 = stablehlo.convert %1150 : (tensor<f64>) -> tensor<f32>
    %1158 = stablehlo.broadcast_in_dim %1157, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1159 = stablehlo.divide %1134, %1158 : tensor<16xf32>
    %1160 = stablehlo.convert %1150 : (tensor<f64>) -> tensor<f32>
    %1161 = stablehlo.broadcast_in_dim %1160, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1162 = stablehlo.divide %1135, %1161 : tensor<16xf32>
    %1163 = stablehlo.convert %1150 : (tensor<f64>) -> tensor<f32>
    %1164 = stablehlo.broadcast_in_dim %1163, dims = [] : (tensor<f32>) -> tensor<48x16xf32>
    %1165 = stablehlo.divide %1136, %1164 : tensor<48x16xf32>
    %1166 = stablehlo.convert %1150 : (tensor<f64>) -> tensor<f32>
    %1167 = stablehlo.broadcast_in_dim %1166, dims = [] : (tensor<f32>) -> tensor<48xf32>
    %1168 = stablehlo.divide %1137, %1167 : tensor<48xf32>
    %1169 = stablehlo.convert %1150 : (tensor<f64>) -> tensor<f32>
    %1170 = stablehlo.broadcast_in_dim %1169, dims = [] : (tensor<f32>) -> tensor<16x16xf32>
    %1171 = stablehlo.divide %1138, %1170 : tensor<16x16xf32>
    %1172 = stablehlo.convert %1150 : (tensor<f64>) -> tensor<f32>
    %1173 = stablehlo.broadcast_in_dim %1172, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1174 = stablehlo.divide %1139, %1173 : tensor<16xf32>
    %1175 = stablehlo.convert %1150 : (tensor<f64>) -> tensor<f32>
    %1176 = stablehlo.broadcast_in_dim %1175, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1177 = stablehlo.divide %1140, %1176 : tensor<16xf32>
    %1178 = stablehlo.convert %1150 : (tensor<f64>) -> tensor<f32>
    %1179 = stablehlo.broadcast_in_dim %1178, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1180 = stablehlo.divide %1141, %1179 : tensor<16xf32>
    %1181 = stablehlo.convert %1150 : (tensor<f64>) -> tensor<f32>
    %1182 = stablehlo.broadcast_in_dim %1181, dims = [] : (tensor<f32>) -> tensor<64x16xf32>
    %1183 = stablehlo.divide %1142, %1182 : tensor<64x16xf32>
    %1184 = stablehlo.convert %1150 : (tensor<f64>) -> tensor<f32>
    %1185 = stablehlo.broadcast_in_dim %1184, dims = [] : (tensor<f32>) -> tensor<64xf32>
    %1186 = stablehlo.divide %1143, %1185 : tensor<64xf32>
    %1187 = stablehlo.convert %1150 : (tensor<f64>) -> tensor<f32>
    %1188 = stablehlo.broadcast_in_dim %1187, dims = [] : (tensor<f32>) -> tensor<16x64xf32>
    %1189 = stablehlo.divide %1144, %1188 : tensor<16x64xf32>
    %1190 = stablehlo.convert %1150 : (tensor<f64>) -> tensor<f32>
    %1191 = stablehlo.broadcast_in_dim %1190, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1192 = stablehlo.divide %1145, %1191 : tensor<16xf32>
    %1193 = stablehlo.convert %1150 : (tensor<f64>) -> tensor<f32>
    %1194 = stablehlo.broadcast_in_dim %1193, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1195 = stablehlo.divide %1146, %1194 : tensor<16xf32>
    %1196 = stablehlo.convert %1150 : (tensor<f64>) -> tensor<f32>
    %1197 = stablehlo.broadcast_in_dim %1196, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1198 = stablehlo.divide %1147, %1197 : tensor<16xf32>
    %1199 = stablehlo.convert %1150 : (tensor<f64>) -> tensor<f32>
    %1200 = stablehlo.broadcast_in_dim %1199, dims = [] : (tensor<f32>) -> tensor<32x16xf32>
    %1201 = stablehlo.divide %1148, %1200 : tensor<32x16xf32>
    %1202 = stablehlo.slice %arg53 [8:9] : (tensor<10xf64>) -> tensor<1xf64>
    %1203 = stablehlo.reshape %1202 : (tensor<1xf64>) -> tensor<f64>
    %1204 = stablehlo.convert %1203 : (tensor<f64>) -> tensor<f32>
    %1205 = stablehlo.broadcast_in_dim %1204, dims = [] : (tensor<f32>) -> tensor<32x16xf32>
    %1206 = stablehlo.add %1153, %1205 : tensor<32x16xf32>
    %1207 = stablehlo.convert %1203 : (tensor<f64>) -> tensor<f32>
    %1208 = stablehlo.broadcast_in_dim %1207, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %1209 = stablehlo.add %1156, %1208 : tensor<8x16xf32>
    %1210 = stablehlo.convert %1203 : (tensor<f64>) -> tensor<f32>
    %1211 = stablehlo.broadcast_in_dim %1210, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1212 = stablehlo.add %1159, %1211 : tensor<16xf32>
    %1213 = stablehlo.convert %1203 : (tensor<f64>) -> tensor<f32>
    %1214 = stablehlo.broadcast_in_dim %1213, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1215 = stablehlo.add %1162, %1214 : tensor<16xf32>
    %1216 = stablehlo.convert %1203 : (tensor<f64>) -> tensor<f32>
    %1217 = stablehlo.broadcast_in_dim %1216, dims = [] : (tensor<f32>) -> tensor<48x16xf32>
    %1218 = stablehlo.add %1165, %1217 : tensor<48x16xf32>
    %1219 = stablehlo.convert %1203 : (tensor<f64>) -> tensor<f32>
    %1220 = stablehlo.broadcast_in_dim %1219, dims = [] : (tensor<f32>) -> tensor<48xf32>
    %1221 = stablehlo.add %1168, %1220 : tensor<48xf32>
    %1222 = stablehlo.convert %1203 : (tensor<f64>) -> tensor<f32>
    %1223 = stablehlo.broadcast_in_dim %1222, dims = [] : (tensor<f32>) -> tensor<16x16xf32>
    %1224 = stablehlo.add %1171, %1223 : tensor<16x16xf32>
    %1225 = stablehlo.convert %1203 : (tensor<f64>) -> tensor<f32>
    %1226 = stablehlo.broadcast_in_dim %1225, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1227 = stablehlo.add %1174, %1226 : tensor<16xf32>
    %1228 = stablehlo.convert %1203 : (tensor<f64>) -> tensor<f32>
    %1229 = stablehlo.broadcast_in_dim %1228, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1230 = stablehlo.add %1177, %1229 : tensor<16xf32>
    %1231 = stablehlo.convert %1203 : (tensor<f64>) -> tensor<f32>
    %1232 = stablehlo.broadcast_in_dim %1231, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1233 = stablehlo.add %1180, %1232 : tensor<16xf32>
    %1234 = stablehlo.convert %1203 : (tensor<f64>) -> tensor<f32>
    %1235 = stablehlo.broadcast_in_dim %1234, dims = [] : (tensor<f32>) -> tensor<64x16xf32>
    %1236 = stablehlo.add %1183, %1235 : tensor<64x16xf32>
    %1237 = stablehlo.convert %1203 : (tensor<f64>) -> tensor<f32>
    %1238 = stablehlo.broadcast_in_dim %1237, dims = [] : (tensor<f32>) -> tensor<64xf32>
    %1239 = stablehlo.add %1186, %1238 : tensor<64xf32>
    %1240 = stablehlo.convert %1203 : (tensor<f64>) -> tensor<f32>
    %1241 = stablehlo.broadcast_in_dim %1240, dims = [] : (tensor<f32>) -> tensor<16x64xf32>
    %1242 = stablehlo.add %1189, %1241 : tensor<16x64xf32>
    %1243 = stablehlo.convert %1203 : (tensor<f64>) -> tensor<f32>
    %1244 = stablehlo.broadcast_in_dim %1243, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1245 = stablehlo.add %1192, %1244 : tensor<16xf32>
    %1246 = stablehlo.convert %1203 : (tensor<f64>) -> tensor<f32>
    %1247 = stablehlo.broadcast_in_dim %1246, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1248 = stablehlo.add %1195, %1247 : tensor<16xf32>
    %1249 = stablehlo.convert %1203 : (tensor<f64>) -> tensor<f32>
    %1250 = stablehlo.broadcast_in_dim %1249, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1251 = stablehlo.add %1198, %1250 : tensor<16xf32>
    %1252 = stablehlo.convert %1203 : (tensor<f64>) -> tensor<f32>
    %1253 = stablehlo.broadcast_in_dim %1252, dims = [] : (tensor<f32>) -> tensor<32x16xf32>
    %1254 = stablehlo.add %1201, %1253 : tensor<32x16xf32>
    %1255 = stablehlo.slice %arg53 [9:10] : (tensor<10xf64>) -> tensor<1xf64>
    %1256 = stablehlo.reshape %1255 : (tensor<1xf64>) -> tensor<f64>
    %1257 = stablehlo.convert %1256 : (tensor<f64>) -> tensor<f32>
    %1258 = stablehlo.broadcast_in_dim %1257, dims = [] : (tensor<f32>) -> tensor<32x16xf32>
    %1259 = stablehlo.multiply %1258, %847 : tensor<32x16xf32>
    %1260 = stablehlo.divide %1259, %1206 : tensor<32x16xf32>
    %1261 = stablehlo.add %788, %1260 : tensor<32x16xf32>
    %1262 = stablehlo.convert %1256 : (tensor<f64>) -> tensor<f32>
    %1263 = stablehlo.broadcast_in_dim %1262, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %1264 = stablehlo.multiply %1263, %856 : tensor<8x16xf32>
    %1265 = stablehlo.divide %1264, %1209 : tensor<8x16xf32>
    %1266 = stablehlo.add %791, %1265 : tensor<8x16xf32>
    %1267 = stablehlo.convert %1256 : (tensor<f64>) -> tensor<f32>
    %1268 = stablehlo.broadcast_in_dim %1267, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1269 = stablehlo.multiply %1268, %865 : tensor<16xf32>
    %1270 = stablehlo.divide %1269, %1212 : tensor<16xf32>
    %1271 = stablehlo.add %794, %1270 : tensor<16xf32>
    %1272 = stablehlo.convert %1256 : (tensor<f64>) -> tensor<f32>
    %1273 = stablehlo.broadcast_in_dim %1272, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1274 = stablehlo.multiply %1273, %874 : tensor<16xf32>
    %1275 = stablehlo.divide %1274, %1215 : tensor<16xf32>
    %1276 = stablehlo.add %797, %1275 : tensor<16xf32>
    %1277 = stablehlo.convert %1256 : (tensor<f64>) -> tensor<f32>
    %1278 = stablehlo.broadcast_in_dim %1277, dims = [] : (tensor<f32>) -> tensor<48x16xf32>
    %1279 = stablehlo.multiply %1278, %883 : tensor<48x16xf32>
    %1280 = stablehlo.divide %1279, %1218 : tensor<48x16xf32>
    %1281 = stablehlo.add %800, %1280 : tensor<48x16xf32>
    %1282 = stablehlo.convert %1256 : (tensor<f64>) -> tensor<f32>
    %1283 = stablehlo.broadcast_in_dim %1282, dims = [] : (tensor<f32>) -> tensor<48xf32>
    %1284 = stablehlo.multiply %1283, %892 : tensor<48xf32>
    %1285 = stablehlo.divide %1284, %1221 : tensor<48xf32>
    %1286 = stablehlo.add %803, %1285 : tensor<48xf32>
    %1287 = stablehlo.convert %1256 : (tensor<f64>) -> tensor<f32>
    %1288 = stablehlo.broadcast_in_dim %1287, dims = [] : (tensor<f32>) -> tensor<16x16xf32>
    %1289 = stablehlo.multiply %1288, %901 : tensor<16x16xf32>
    %1290 = stablehlo.divide %1289, %1224 : tensor<16x16xf32>
    %1291 = stablehlo.add %806, %1290 : tensor<16x16xf32>
    %1292 = stablehlo.convert %1256 : (tensor<f64>) -> tensor<f32>
    %1293 = stablehlo.broadcast_in_dim %1292, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1294 = stablehlo.multiply %1293, %910 : tensor<16xf32>
    %1295 = stablehlo.divide %1294, %1227 : tensor<16xf32>
    %1296 = stablehlo.add %809, %1295 : tensor<16xf32>
    %1297 = stablehlo.convert %1256 : (tensor<f64>) -> tensor<f32>
    %1298 = stablehlo.broadcast_in_dim %1297, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1299 = stablehlo.multiply %1298, %919 : tensor<16xf32>
    %1300 = stablehlo.divide %1299, %1230 : tensor<16xf32>
    %1301 = stablehlo.add %812, %1300 : tensor<16xf32>
    %1302 = stablehlo.convert %1256 : (tensor<f64>) -> tensor<f32>
    %1303 = stablehlo.broadcast_in_dim %1302, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1304 = stablehlo.multiply %1303, %928 : tensor<16xf32>
    %1305 = stablehlo.divide %1304, %1233 : tensor<16xf32>
    %1306 = stablehlo.add %815, %1305 : tensor<16xf32>
    %1307 = stablehlo.convert %1256 : (tensor<f64>) -> tensor<f32>
    %1308 = stablehlo.broadcast_in_dim %1307, dims = [] : (tensor<f32>) -> tensor<64x16xf32>
    %1309 = stablehlo.multiply %1308, %937 : tensor<64x16xf32>
    %1310 = stablehlo.divide %1309, %1236 : tensor<64x16xf32>
    %1311 = stablehlo.add %818, %1310 : tensor<64x16xf32>
    %1312 = stablehlo.convert %1256 : (tensor<f64>) -> tensor<f32>
    %1313 = stablehlo.broadcast_in_dim %1312, dims = [] : (tensor<f32>) -> tensor<64xf32>
    %1314 = stablehlo.multiply %1313, %946 : tensor<64xf32>
    %1315 = stablehlo.divide %1314, %1239 : tensor<64xf32>
    %1316 = stablehlo.add %821, %1315 : tensor<64xf32>
    %1317 = stablehlo.convert %1256 : (tensor<f64>) -> tensor<f32>
    %1318 = stablehlo.broadcast_in_dim %1317, dims = [] : (tensor<f32>) -> tensor<16x64xf32>
    %1319 = stablehlo.multiply %1318, %955 : tensor<16x64xf32>
    %1320 = stablehlo.divide %1319, %1242 : tensor<16x64xf32>
    %1321 = stablehlo.add %824, %1320 : tensor<16x64xf32>
    %1322 = stablehlo.convert %1256 : (tensor<f64>) -> tensor<f32>
    %1323 = stablehlo.broadcast_in_dim %1322, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1324 = stablehlo.multiply %1323, %964 : tensor<16xf32>
    %1325 = stablehlo.divide %1324, %1245 : tensor<16xf32>
    %1326 = stablehlo.add %827, %1325 : tensor<16xf32>
    %1327 = stablehlo.convert %1256 : (tensor<f64>) -> tensor<f32>
    %1328 = stablehlo.broadcast_in_dim %1327, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1329 = stablehlo.multiply %1328, %973 : tensor<16xf32>
    %1330 = stablehlo.divide %1329, %1248 : tensor<16xf32>
    %1331 = stablehlo.add %830, %1330 : tensor<16xf32>
    %1332 = stablehlo.convert %1256 : (tensor<f64>) -> tensor<f32>
    %1333 = stablehlo.broadcast_in_dim %1332, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1334 = stablehlo.multiply %1333, %982 : tensor<16xf32>
    %1335 = stablehlo.divide %1334, %1251 : tensor<16xf32>
    %1336 = stablehlo.add %833, %1335 : tensor<16xf32>
    %1337 = stablehlo.convert %1256 : (tensor<f64>) -> tensor<f32>
    %1338 = stablehlo.broadcast_in_dim %1337, dims = [] : (tensor<f32>) -> tensor<32x16xf32>
    %1339 = stablehlo.multiply %1338, %991 : tensor<32x16xf32>
    %1340 = stablehlo.divide %1339, %1254 : tensor<32x16xf32>
    %1341 = stablehlo.add %836, %1340 : tensor<32x16xf32>
    return %338, %847, %856, %865, %874, %883, %892, %901, %910, %919, %928, %937, %946, %955, %964, %973, %982, %991, %1051, %1056, %1061, %1066, %1071, %1076, %1081, %1086, %1091, %1096, %1101, %1106, %1111, %1116, %1121, %1126, %1131, %1261, %1266, %1271, %1276, %1281, %1286, %1291, %1296, %1301, %1306, %1311, %1316, %1321, %1326, %1331, %1336, %1341 : tensor<f32>, tensor<32x16xf32>, tensor<8x16xf32>, tensor<16xf32>, tensor<16xf32>, tensor<48x16xf32>, tensor<48xf32>, tensor<16x16xf32>, tensor<16xf32>, tensor<16xf32>, tensor<16xf32>, tensor<64x16xf32>, tensor<64xf32>, tensor<16x64xf32>, tensor<16xf32>, tensor<16xf32>, tensor<16xf32>, tensor<32x16xf32>, tensor<32x16xf32>, tensor<8x16xf32>, tensor<16xf32>, tensor<16xf32>, tensor<48x16xf32>, tensor<48xf32>, tensor<16x16xf32>, tensor<16xf32>, tensor<16xf32>, tensor<16xf32>, tensor<64x16xf32>, tensor<64xf32>, tensor<16x64xf32>, tensor<16xf32>, tensor<16xf32>, tensor<16xf32>, tensor<32x16xf32>, tensor<32x16xf32>, tensor<8x16xf32>, tensor<16xf32>, tensor<16xf32>, tensor<48x16xf32>, tensor<48xf32>, tensor<16x16xf32>, tensor<16xf32>, tensor<16xf32>, tensor<16xf32>, tensor<64x16xf32>, tensor<64xf32>, tensor<16x64xf32>, tensor<16xf32>, tensor<16xf32>, tensor<16xf32>, tensor<32x16xf32>
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

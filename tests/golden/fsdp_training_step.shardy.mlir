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
    %406:13 = stablehlo.optimization_barrier %arg6, %arg7, %arg8, %arg9, %arg10, %arg11, %arg12, %arg13, %arg14, %arg15, %arg16, %arg17, %396 : tensor<16xf32>, tensor<16xf32>, tensor<48x16xf32>, tensor<48xf32>, tensor<16x16xf32>, tensor<16xf32>, tensor<16xf32>, tensor<16xf32>, tensor<64x16xf32>, tensor<64xf32>, tensor<16x64xf32>, tensor<16xf32>, tensor<8x8x16xf32>
    %407 = sdy.sharding_constraint %406#0 <@mesh, [{"fsdp"}]> : tensor<16xf32>
    %408 = sdy.sharding_constraint %406#1 <@mesh, [{"fsdp"}]> : tensor<16xf32>
    %409 = sdy.sharding_constraint %406#2 <@mesh, [{"fsdp"}, {}]> : tensor<48x16xf32>
    %410 = sdy.sharding_constraint %406#3 <@mesh, [{"fsdp"}]> : tensor<48xf32>
    %411 = sdy.sharding_constraint %406#4 <@mesh, [{"fsdp"}, {}]> : tensor<16x16xf32>
    %412 = sdy.sharding_constraint %406#5 <@mesh, [{"fsdp"}]> : tensor<16xf32>
    %413 = sdy.sharding_constraint %406#6 <@mesh, [{"fsdp"}]> : tensor<16xf32>
    %414 = sdy.sharding_constraint %406#7 <@mesh, [{"fsdp"}]> : tensor<16xf32>
    %415 = sdy.sharding_constraint %406#8 <@mesh, [{"fsdp"}, {}]> : tensor<64x16xf32>
    %416 = sdy.sharding_constraint %406#9 <@mesh, [{"fsdp"}]> : tensor<64xf32>
    %417 = sdy.sharding_constraint %406#10 <@mesh, [{}, {"fsdp"}]> : tensor<16x64xf32>
    %418 = sdy.sharding_constraint %406#11 <@mesh, [{"fsdp"}]> : tensor<16xf32>
    %419 = stablehlo.reshape %407 : (tensor<16xf32>) -> tensor<16x1xf32>
    %420 = stablehlo.reshape %419 : (tensor<16x1xf32>) -> tensor<8x2x1xf32>
    %421 = stablehlo.reshape %420 : (tensor<8x2x1xf32>) -> tensor<8x2xf32>
    %422 = sdy.sharding_constraint %421 <@mesh, [{"fsdp"}, {}]> : tensor<8x2xf32>
    %423 = stablehlo.reshape %408 : (tensor<16xf32>) -> tensor<16x1xf32>
    %424 = stablehlo.reshape %423 : (tensor<16x1xf32>) -> tensor<8x2x1xf32>
    %425 = stablehlo.reshape %424 : (tensor<8x2x1xf32>) -> tensor<8x2xf32>
    %426 = sdy.sharding_constraint %425 <@mesh, [{"fsdp"}, {}]> : tensor<8x2xf32>
    %427 = stablehlo.reshape %409 : (tensor<48x16xf32>) -> tensor<8x6x16xf32>
    %428 = stablehlo.reshape %427 : (tensor<8x6x16xf32>) -> tensor<8x96xf32>
    %429 = sdy.sharding_constraint %428 <@mesh, [{"fsdp"}, {}]> : tensor<8x96xf32>
    %430 = stablehlo.reshape %410 : (tensor<48xf32>) -> tensor<48x1xf32>
    %431 = stablehlo.reshape %430 : (tensor<48x1xf32>) -> tensor<8x6x1xf32>
    %432 = stablehlo.reshape %431 : (tensor<8x6x1xf32>) -> tensor<8x6xf32>
    %433 = sdy.sharding_constraint %432 <@mesh, [{"fsdp"}, {}]> : tensor<8x6xf32>
    %434 = stablehlo.reshape %411 : (tensor<16x16xf32>) -> tensor<8x2x16xf32>
    %435 = stablehlo.reshape %434 : (tensor<8x2x16xf32>) -> tensor<8x32xf32>
    %436 = sdy.sharding_constraint %435 <@mesh, [{"fsdp"}, {}]> : tensor<8x32xf32>
    %437 = stablehlo.reshape %412 : (tensor<16xf32>) -> tensor<16x1xf32>
    %438 = stablehlo.reshape %437 : (tensor<16x1xf32>) -> tensor<8x2x1xf32>
    %439 = stablehlo.reshape %438 : (tensor<8x2x1xf32>) -> tensor<8x2xf32>
    %440 = sdy.sharding_constraint %439 <@mesh, [{"fsdp"}, {}]> : tensor<8x2xf32>
    %441 = stablehlo.reshape %413 : (tensor<16xf32>) -> tensor<16x1xf32>
    %442 = stablehlo.reshape %441 : (tensor<16x1xf32>) -> tensor<8x2x1xf32>
    %443 = stablehlo.reshape %442 : (tensor<8x2x1xf32>) -> tensor<8x2xf32>
    %444 = sdy.sharding_constraint %443 <@mesh, [{"fsdp"}, {}]> : tensor<8x2xf32>
    %445 = stablehlo.reshape %414 : (tensor<16xf32>) -> tensor<16x1xf32>
    %446 = stablehlo.reshape %445 : (tensor<16x1xf32>) -> tensor<8x2x1xf32>
    %447 = stablehlo.reshape %446 : (tensor<8x2x1xf32>) -> tensor<8x2xf32>
    %448 = sdy.sharding_constraint %447 <@mesh, [{"fsdp"}, {}]> : tensor<8x2xf32>
    %449 = stablehlo.reshape %415 : (tensor<64x16xf32>) -> tensor<8x8x16xf32>
    %450 = stablehlo.reshape %449 : (tensor<8x8x16xf32>) -> tensor<8x128xf32>
    %451 = sdy.sharding_constraint %450 <@mesh, [{"fsdp"}, {}]> : tensor<8x128xf32>
    %452 = stablehlo.reshape %416 : (tensor<64xf32>) -> tensor<64x1xf32>
    %453 = stablehlo.reshape %452 : (tensor<64x1xf32>) -> tensor<8x8x1xf32>
    %454 = stablehlo.reshape %453 : (tensor<8x8x1xf32>) -> tensor<8x8xf32>
    %455 = sdy.sharding_constraint %454 <@mesh, [{"fsdp"}, {}]> : tensor<8x8xf32>
    %456 = stablehlo.transpose %417, dims = [1, 0] : (tensor<16x64xf32>) -> tensor<64x16xf32>
    %457 = stablehlo.reshape %456 : (tensor<64x16xf32>) -> tensor<8x8x16xf32>
    %458 = stablehlo.reshape %457 : (tensor<8x8x16xf32>) -> tensor<8x128xf32>
    %459 = sdy.sharding_constraint %458 <@mesh, [{"fsdp"}, {}]> : tensor<8x128xf32>
    %460 = stablehlo.reshape %418 : (tensor<16xf32>) -> tensor<16x1xf32>
    %461 = stablehlo.reshape %460 : (tensor<16x1xf32>) -> tensor<8x2x1xf32>
    %462 = stablehlo.reshape %461 : (tensor<8x2x1xf32>) -> tensor<8x2xf32>
    %463 = sdy.sharding_constraint %462 <@mesh, [{"fsdp"}, {}]> : tensor<8x2xf32>
    %464 = stablehlo.concatenate %422, %426, %429, %433, %436, %440, %444, %448, %451, %455, %459, %463, dim = 1 : (tensor<8x2xf32>, tensor<8x2xf32>, tensor<8x96xf32>, tensor<8x6xf32>, tensor<8x32xf32>, tensor<8x2xf32>, tensor<8x2xf32>, tensor<8x2xf32>, tensor<8x128xf32>, tensor<8x8xf32>, tensor<8x128xf32>, tensor<8x2xf32>) -> tensor<8x410xf32>
    %465 = sdy.sharding_constraint %464 <@mesh, [{"fsdp"}, {}]> : tensor<8x410xf32>
    %466 = sdy.sharding_constraint %465 <@mesh, [{}, {}]> : tensor<8x410xf32>
    %467 = stablehlo.slice %466 [0:8, 0:2] : (tensor<8x410xf32>) -> tensor<8x2xf32>
    %468 = stablehlo.reshape %467 : (tensor<8x2xf32>) -> tensor<16xf32>
    %469 = stablehlo.slice %466 [0:8, 2:4] : (tensor<8x410xf32>) -> tensor<8x2xf32>
    %470 = stablehlo.reshape %469 : (tensor<8x2xf32>) -> tensor<16xf32>
    %471 = stablehlo.slice %466 [0:8, 4:100] : (tensor<8x410xf32>) -> tensor<8x96xf32>
    %472 = stablehlo.reshape %471 : (tensor<8x96xf32>) -> tensor<48x16xf32>
    %473 = stablehlo.slice %466 [0:8, 100:106] : (tensor<8x410xf32>) -> tensor<8x6xf32>
    %474 = stablehlo.reshape %473 : (tensor<8x6xf32>) -> tensor<48xf32>
    %475 = stablehlo.slice %466 [0:8, 106:138] : (tensor<8x410xf32>) -> tensor<8x32xf32>
    %476 = stablehlo.reshape %475 : (tensor<8x32xf32>) -> tensor<16x16xf32>
    %477 = stablehlo.slice %466 [0:8, 138:140] : (tensor<8x410xf32>) -> tensor<8x2xf32>
    %478 = stablehlo.reshape %477 : (tensor<8x2xf32>) -> tensor<16xf32>
    %479 = stablehlo.slice %466 [0:8, 140:142] : (tensor<8x410xf32>) -> tensor<8x2xf32>
    %480 = stablehlo.reshape %479 : (tensor<8x2xf32>) -> tensor<16xf32>
    %481 = stablehlo.slice %466 [0:8, 142:144] : (tensor<8x410xf32>) -> tensor<8x2xf32>
    %482 = stablehlo.reshape %481 : (tensor<8x2xf32>) -> tensor<16xf32>
    %483 = stablehlo.slice %466 [0:8, 144:272] : (tensor<8x410xf32>) -> tensor<8x128xf32>
    %484 = stablehlo.reshape %483 : (tensor<8x128xf32>) -> tensor<64x16xf32>
    %485 = stablehlo.slice %466 [0:8, 272:280] : (tensor<8x410xf32>) -> tensor<8x8xf32>
    %486 = stablehlo.reshape %485 : (tensor<8x8xf32>) -> tensor<64xf32>
    %487 = stablehlo.slice %466 [0:8, 280:408] : (tensor<8x410xf32>) -> tensor<8x128xf32>
    %488 = stablehlo.reshape %487 : (tensor<8x128xf32>) -> tensor<64x16xf32>
    %489 = stablehlo.transpose %488, dims = [1, 0] : (tensor<64x16xf32>) -> tensor<16x64xf32>
    %490 = stablehlo.slice %466 [0:8, 408:410] : (tensor<8x410xf32>) -> tensor<8x2xf32>
    %491 = stablehlo.reshape %490 : (tensor<8x2xf32>) -> tensor<16xf32>
    %492 = stablehlo.reshape %272 : (tensor<8x8x64xf32>) -> tensor<64x64xf32>
    %493 = stablehlo.reshape %406#12 : (tensor<8x8x16xf32>) -> tensor<64x16xf32>
    %494 = stablehlo.dot_general %493, %489, contracting_dims = [1] x [0], precision = [HIGHEST, HIGHEST] : (tensor<64x16xf32>, tensor<16x64xf32>) -> tensor<64x64xf32>
    %495 = stablehlo.transpose %493, dims = [1, 0] : (tensor<64x16xf32>) -> tensor<16x64xf32>
    %496 = stablehlo.dot_general %495, %492, contracting_dims = [1] x [0], precision = [HIGHEST, HIGHEST] : (tensor<16x64xf32>, tensor<64x64xf32>) -> tensor<16x64xf32>
    %cst_56 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %497 = stablehlo.reduce(%493 init: %cst_56) applies stablehlo.add across dimensions = [0] : (tensor<64x16xf32>, tensor<f32>) -> tensor<16xf32>
    %498 = stablehlo.reshape %494 : (tensor<64x64xf32>) -> tensor<8x8x64xf32>
    %499 = sdy.sharding_constraint %496 <@mesh, [{}, {}]> : tensor<16x64xf32>
    %500 = sdy.sharding_constraint %499 <@mesh, [{}, {"fsdp"}]> : tensor<16x64xf32>
    %501 = stablehlo.optimization_barrier %500 : tensor<16x64xf32>
    %502 = sdy.sharding_constraint %497 <@mesh, [{}]> : tensor<16xf32>
    %503 = sdy.sharding_constraint %502 <@mesh, [{"fsdp"}]> : tensor<16xf32>
    %504 = stablehlo.optimization_barrier %503 : tensor<16xf32>
    %505 = stablehlo.multiply %259, %259 : tensor<8x8x64xf32>
    %506 = stablehlo.multiply %505, %259 : tensor<8x8x64xf32>
    %cst_57 = stablehlo.constant dense<4.471500e-02> : tensor<f32>
    %507 = stablehlo.broadcast_in_dim %cst_57, dims = [] : (tensor<f32>) -> tensor<8x8x64xf32>
    %508 = stablehlo.multiply %507, %506 : tensor<8x8x64xf32>
    %509 = stablehlo.add %259, %508 : tensor<8x8x64xf32>
    %cst_58 = stablehlo.constant dense<0.797884583> : tensor<f32>
    %510 = stablehlo.broadcast_in_dim %cst_58, dims = [] : (tensor<f32>) -> tensor<8x8x64xf32>
    %511 = stablehlo.multiply %510, %509 : tensor<8x8x64xf32>
    %512 = stablehlo.tanh %511 : tensor<8x8x64xf32>
    %cst_59 = stablehlo.constant dense<1.341450e-01> : tensor<f32>
    %513 = stablehlo.broadcast_in_dim %cst_59, dims = [] : (tensor<f32>) -> tensor<8x8x64xf32>
    %514 = stablehlo.multiply %513, %505 : tensor<8x8x64xf32>
    %cst_60 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %515 = stablehlo.broadcast_in_dim %cst_60, dims = [] : (tensor<f32>) -> tensor<8x8x64xf32>
    %516 = stablehlo.add %515, %514 : tensor<8x8x64xf32>
    %cst_61 = stablehlo.constant dense<0.797884583> : tensor<f32>
    %517 = stablehlo.broadcast_in_dim %cst_61, dims = [] : (tensor<f32>) -> tensor<8x8x64xf32>
    %518 = stablehlo.multiply %517, %516 : tensor<8x8x64xf32>
    %cst_62 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %519 = stablehlo.broadcast_in_dim %cst_62, dims = [] : (tensor<f32>) -> tensor<8x8x64xf32>
    %520 = stablehlo.add %519, %512 : tensor<8x8x64xf32>
    %cst_63 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %521 = stablehlo.broadcast_in_dim %cst_63, dims = [] : (tensor<f32>) -> tensor<8x8x64xf32>
    %522 = stablehlo.multiply %521, %520 : tensor<8x8x64xf32>
    %cst_64 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %523 = stablehlo.broadcast_in_dim %cst_64, dims = [] : (tensor<f32>) -> tensor<8x8x64xf32>
    %524 = stablehlo.multiply %523, %259 : tensor<8x8x64xf32>
    %525 = stablehlo.multiply %512, %512 : tensor<8x8x64xf32>
    %cst_65 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %526 = stablehlo.broadcast_in_dim %cst_65, dims = [] : (tensor<f32>) -> tensor<8x8x64xf32>
    %527 = stablehlo.subtract %526, %525 : tensor<8x8x64xf32>
    %528 = stablehlo.multiply %524, %527 : tensor<8x8x64xf32>
    %529 = stablehlo.multiply %528, %518 : tensor<8x8x64xf32>
    %530 = stablehlo.add %522, %529 : tensor<8x8x64xf32>
    %531 = stablehlo.multiply %498, %530 : tensor<8x8x64xf32>
    %532 = stablehlo.reshape %251 : (tensor<8x8x16xf32>) -> tensor<64x16xf32>
    %533 = stablehlo.reshape %531 : (tensor<8x8x64xf32>) -> tensor<64x64xf32>
    %534 = stablehlo.dot_general %533, %484, contracting_dims = [1] x [0], precision = [HIGHEST, HIGHEST] : (tensor<64x64xf32>, tensor<64x16xf32>) -> tensor<64x16xf32>
    %535 = stablehlo.transpose %533, dims = [1, 0] : (tensor<64x64xf32>) -> tensor<64x64xf32>
    %536 = stablehlo.dot_general %535, %532, contracting_dims = [1] x [0], precision = [HIGHEST, HIGHEST] : (tensor<64x64xf32>, tensor<64x16xf32>) -> tensor<64x16xf32>
    %cst_66 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %537 = stablehlo.reduce(%533 init: %cst_66) applies stablehlo.add across dimensions = [0] : (tensor<64x64xf32>, tensor<f32>) -> tensor<64xf32>
    %538 = stablehlo.reshape %534 : (tensor<64x16xf32>) -> tensor<8x8x16xf32>
    %539 = sdy.sharding_constraint %536 <@mesh, [{}, {}]> : tensor<64x16xf32>
    %540 = sdy.sharding_constraint %539 <@mesh, [{"fsdp"}, {}]> : tensor<64x16xf32>
    %541 = stablehlo.optimization_barrier %540 : tensor<64x16xf32>
    %542 = sdy.sharding_constraint %537 <@mesh, [{}]> : tensor<64xf32>
    %543 = sdy.sharding_constraint %542 <@mesh, [{"fsdp"}]> : tensor<64xf32>
    %544 = stablehlo.optimization_barrier %543 : tensor<64xf32>
    %545 = stablehlo.broadcast_in_dim %233, dims = [0, 1, 2] : (tensor<8x8x1xf32>) -> tensor<8x8x16xf32>
    %546 = stablehlo.subtract %229, %545 : tensor<8x8x16xf32>
    %547 = stablehlo.broadcast_in_dim %243, dims = [0, 1, 2] : (tensor<8x8x1xf32>) -> tensor<8x8x16xf32>
    %548 = stablehlo.multiply %546, %547 : tensor<8x8x16xf32>
    %549 = stablehlo.broadcast_in_dim %480, dims = [2] : (tensor<16xf32>) -> tensor<1x1x16xf32>
    %550 = stablehlo.broadcast_in_dim %549, dims = [0, 1, 2] : (tensor<1x1x16xf32>) -> tensor<8x8x16xf32>
    %551 = stablehlo.multiply %538, %550 : tensor<8x8x16xf32>
    %cst_67 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %552 = stablehlo.reduce(%551 init: %cst_67) applies stablehlo.add across dimensions = [2] : (tensor<8x8x16xf32>, tensor<f32>) -> tensor<8x8xf32>
    %553 = stablehlo.broadcast_in_dim %552, dims = [0, 1] : (tensor<8x8xf32>) -> tensor<8x8x1xf32>
    %cst_68 = stablehlo.constant dense<1.600000e+01> : tensor<f32>
    %554 = stablehlo.broadcast_in_dim %cst_68, dims = [] : (tensor<f32>) -> tensor<8x8x1xf32>
    %555 = stablehlo.divide %553, %554 : tensor<8x8x1xf32>
    %556 = stablehlo.multiply %551, %548 : tensor<8x8x16xf32>
    %cst_69 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %557 = stablehlo.reduce(%556 init: %cst_69) applies stablehlo.add across dimensions = [2] : (tensor<8x8x16xf32>, tensor<f32>) -> tensor<8x8xf32>
    %558 = stablehlo.broadcast_in_dim %557, dims = [0, 1] : (tensor<8x8xf32>) -> tensor<8x8x1xf32>
    %cst_70 = stablehlo.constant dense<1.600000e+01> : tensor<f32>
    %559 = stablehlo.broadcast_in_dim %cst_70, dims = [] : (tensor<f32>) -> tensor<8x8x1xf32>
    %560 = stablehlo.divide %558, %559 : tensor<8x8x1xf32>
    %561 = stablehlo.broadcast_in_dim %555, dims = [0, 1, 2] : (tensor<8x8x1xf32>) -> tensor<8x8x16xf32>
    %562 = stablehlo.subtract %551, %561 : tensor<8x8x16xf32>
    %563 = stablehlo.broadcast_in_dim %560, dims = [0, 1, 2] : (tensor<8x8x1xf32>) -> tensor<8x8x16xf32>
    %564 = stablehlo.multiply %548, %563 : tensor<8x8x16xf32>
    %565 = stablehlo.subtract %562, %564 : tensor<8x8x16xf32>
    %566 = stablehlo.broadcast_in_dim %243, dims = [0, 1, 2] : (tensor<8x8x1xf32>) -> tensor<8x8x16xf32>
    %567 = stablehlo.multiply %566, %565 : tensor<8x8x16xf32>
    %568 = stablehlo.multiply %538, %548 : tensor<8x8x16xf32>
    %cst_71 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %569 = stablehlo.reduce(%568 init: %cst_71) applies stablehlo.add across dimensions = [0, 1] : (tensor<8x8x16xf32>, tensor<f32>) -> tensor<16xf32>
    %cst_72 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %570 = stablehlo.reduce(%538 init: %cst_72) applies stablehlo.add across dimensions = [0, 1] : (tensor<8x8x16xf32>, tensor<f32>) -> tensor<16xf32>
    %571 = stablehlo.add %406#12, %567 : tensor<8x8x16xf32>
    %572 = sdy.sharding_constraint %569 <@mesh, [{}]> : tensor<16xf32>
    %573 = sdy.sharding_constraint %572 <@mesh, [{"fsdp"}]> : tensor<16xf32>
    %574 = stablehlo.optimization_barrier %573 : tensor<16xf32>
    %575 = sdy.sharding_constraint %570 <@mesh, [{}]> : tensor<16xf32>
    %576 = sdy.sharding_constraint %575 <@mesh, [{"fsdp"}]> : tensor<16xf32>
    %577 = stablehlo.optimization_barrier %576 : tensor<16xf32>
    %578 = stablehlo.reshape %220 : (tensor<8x8x16xf32>) -> tensor<64x16xf32>
    %579 = stablehlo.reshape %571 : (tensor<8x8x16xf32>) -> tensor<64x16xf32>
    %580 = stablehlo.dot_general %579, %476, contracting_dims = [1] x [0], precision = [HIGHEST, HIGHEST] : (tensor<64x16xf32>, tensor<16x16xf32>) -> tensor<64x16xf32>
    %581 = stablehlo.transpose %579, dims = [1, 0] : (tensor<64x16xf32>) -> tensor<16x64xf32>
    %582 = stablehlo.dot_general %581, %578, contracting_dims = [1] x [0], precision = [HIGHEST, HIGHEST] : (tensor<16x64xf32>, tensor<64x16xf32>) -> tensor<16x16xf32>
    %cst_73 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %583 = stablehlo.reduce(%579 init: %cst_73) applies stablehlo.add across dimensions = [0] : (tensor<64x16xf32>, tensor<f32>) -> tensor<16xf32>
    %584 = stablehlo.reshape %580 : (tensor<64x16xf32>) -> tensor<8x8x16xf32>
    %585 = sdy.sharding_constraint %582 <@mesh, [{}, {}]> : tensor<16x16xf32>
    %586 = sdy.sharding_constraint %585 <@mesh, [{"fsdp"}, {}]> : tensor<16x16xf32>
    %587 = stablehlo.optimization_barrier %586 : tensor<16x16xf32>
    %588 = sdy.sharding_constraint %583 <@mesh, [{}]> : tensor<16xf32>
    %589 = sdy.sharding_constraint %588 <@mesh, [{"fsdp"}]> : tensor<16xf32>
    %590 = stablehlo.optimization_barrier %589 : tensor<16xf32>
    %591 = stablehlo.reshape %584 : (tensor<8x8x16xf32>) -> tensor<8x8x2x8xf32>
    %592 = stablehlo.transpose %591, dims = [0, 2, 1, 3] : (tensor<8x8x2x8xf32>) -> tensor<8x2x8x8xf32>
    %593 = stablehlo.dot_general %185, %188, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [3], precision = [HIGHEST, HIGHEST] : (tensor<8x2x8x8xf32>, tensor<8x2x8x8xf32>) -> tensor<8x2x8x8xf32>
    %cst_74 = stablehlo.constant dense<0.353553385> : tensor<f32>
    %594 = stablehlo.broadcast_in_dim %cst_74, dims = [] : (tensor<f32>) -> tensor<8x2x8x8xf32>
    %595 = stablehlo.multiply %593, %594 : tensor<8x2x8x8xf32>
    %596 = stablehlo.iota dim = 0 : tensor<8x8xi32>
    %597 = stablehlo.iota dim = 1 : tensor<8x8xi32>
    %598 = stablehlo.compare LE, %597, %596, SIGNED : (tensor<8x8xi32>, tensor<8x8xi32>) -> tensor<8x8xi1>
    %cst_75 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %599 = call @_where(%598, %595, %cst_75) : (tensor<8x8xi1>, tensor<8x2x8x8xf32>, tensor<f32>) -> tensor<8x2x8x8xf32>
    %cst_76 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %600 = stablehlo.reduce(%599 init: %cst_76) applies stablehlo.maximum across dimensions = [3] : (tensor<8x2x8x8xf32>, tensor<f32>) -> tensor<8x2x8xf32>
    %601 = stablehlo.broadcast_in_dim %600, dims = [0, 1, 2] : (tensor<8x2x8xf32>) -> tensor<8x2x8x1xf32>
    %602 = stablehlo.broadcast_in_dim %601, dims = [0, 1, 2, 3] : (tensor<8x2x8x1xf32>) -> tensor<8x2x8x8xf32>
    %603 = stablehlo.subtract %599, %602 : tensor<8x2x8x8xf32>
    %604 = stablehlo.exponential %603 : tensor<8x2x8x8xf32>
    %cst_77 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %605 = stablehlo.reduce(%604 init: %cst_77) applies stablehlo.add across dimensions = [3] : (tensor<8x2x8x8xf32>, tensor<f32>) -> tensor<8x2x8xf32>
    %606 = stablehlo.broadcast_in_dim %605, dims = [0, 1, 2] : (tensor<8x2x8xf32>) -> tensor<8x2x8x1xf32>
    %607 = stablehlo.log %606 : tensor<8x2x8x1xf32>
    %608 = stablehlo.add %601, %607 : tensor<8x2x8x1xf32>
    %609 = stablehlo.reshape %608 : (tensor<8x2x8x1xf32>) -> tensor<8x2x8xf32>
    %610 = stablehlo.broadcast_in_dim %606, dims = [0, 1, 2, 3] : (tensor<8x2x8x1xf32>) -> tensor<8x2x8x8xf32>
    %611 = stablehlo.divide %604, %610 : tensor<8x2x8x8xf32>
    %612 = stablehlo.dot_general %611, %592, batching_dims = [0, 1] x [0, 1], contracting_dims = [2] x [2], precision = [HIGHEST, HIGHEST] : (tensor<8x2x8x8xf32>, tensor<8x2x8x8xf32>) -> tensor<8x2x8x8xf32>
    %613 = stablehlo.dot_general %592, %191, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [3], precision = [HIGHEST, HIGHEST] : (tensor<8x2x8x8xf32>, tensor<8x2x8x8xf32>) -> tensor<8x2x8x8xf32>
    %614 = stablehlo.multiply %592, %215 : tensor<8x2x8x8xf32>
    %cst_78 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %615 = stablehlo.reduce(%614 init: %cst_78) applies stablehlo.add across dimensions = [3] : (tensor<8x2x8x8xf32>, tensor<f32>) -> tensor<8x2x8xf32>
    %616 = stablehlo.broadcast_in_dim %615, dims = [0, 1, 2] : (tensor<8x2x8xf32>) -> tensor<8x2x8x1xf32>
    %617 = stablehlo.broadcast_in_dim %616, dims = [0, 1, 2, 3] : (tensor<8x2x8x1xf32>) -> tensor<8x2x8x8xf32>
    %618 = stablehlo.subtract %613, %617 : tensor<8x2x8x8xf32>
    %619 = stablehlo.multiply %611, %618 : tensor<8x2x8x8xf32>
    %620 = stablehlo.dot_general %619, %188, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [2], precision = [HIGHEST, HIGHEST] : (tensor<8x2x8x8xf32>, tensor<8x2x8x8xf32>) -> tensor<8x2x8x8xf32>
    %cst_79 = stablehlo.constant dense<0.353553385> : tensor<f32>
    %621 = stablehlo.broadcast_in_dim %cst_79, dims = [] : (tensor<f32>) -> tensor<8x2x8x8xf32>
    %622 = stablehlo.multiply %621, %620 : tensor<8x2x8x8xf32>
    %623 = stablehlo.dot_general %619, %185, batching_dims = [0, 1] x [0, 1], contracting_dims = [2] x [2], precision = [HIGHEST, HIGHEST] : (tensor<8x2x8x8xf32>, tensor<8x2x8x8xf32>) -> tensor<8x2x8x8xf32>
    %cst_80 = stablehlo.constant dense<0.353553385> : tensor<f32>
    %624 = stablehlo.broadcast_in_dim %cst_80, dims = [] : (tensor<f32>) -> tensor<8x2x8x8xf32>
    %625 = stablehlo.multiply %624, %623 : tensor<8x2x8x8xf32>
    %626 = stablehlo.transpose %622, dims = [0, 2, 1, 3] : (tensor<8x2x8x8xf32>) -> tensor<8x8x2x8xf32>
    %627 = stablehlo.transpose %625, dims = [0, 2, 1, 3] : (tensor<8x2x8x8xf32>) -> tensor<8x8x2x8xf32>
    %628 = stablehlo.transpose %612, dims = [0, 2, 1, 3] : (tensor<8x2x8x8xf32>) -> tensor<8x8x2x8xf32>
    %629 = stablehlo.broadcast_in_dim %626, dims = [0, 1, 3, 4] : (tensor<8x8x2x8xf32>) -> tensor<8x8x1x2x8xf32>
    %630 = stablehlo.broadcast_in_dim %627, dims = [0, 1, 3, 4] : (tensor<8x8x2x8xf32>) -> tensor<8x8x1x2x8xf32>
    %631 = stablehlo.broadcast_in_dim %628, dims = [0, 1, 3, 4] : (tensor<8x8x2x8xf32>) -> tensor<8x8x1x2x8xf32>
    %632 = stablehlo.concatenate %629, %630, %631, dim = 2 : (tensor<8x8x1x2x8xf32>, tensor<8x8x1x2x8xf32>, tensor<8x8x1x2x8xf32>) -> tensor<8x8x3x2x8xf32>
    %633 = stablehlo.reshape %632 : (tensor<8x8x3x2x8xf32>) -> tensor<8x8x48xf32>
    %634 = stablehlo.reshape %173 : (tensor<8x8x16xf32>) -> tensor<64x16xf32>
    %635 = stablehlo.reshape %633 : (tensor<8x8x48xf32>) -> tensor<64x48xf32>
    %636 = stablehlo.dot_general %635, %472, contracting_dims = [1] x [0], precision = [HIGHEST, HIGHEST] : (tensor<64x48xf32>, tensor<48x16xf32>) -> tensor<64x16xf32>
    %637 = stablehlo.transpose %635, dims = [1, 0] : (tensor<64x48xf32>) -> tensor<48x64xf32>
    %638 = stablehlo.dot_general %637, %634, contracting_dims = [1] x [0], precision = [HIGHEST, HIGHEST] : (tensor<48x64xf32>, tensor<64x16xf32>) -> tensor<48x16xf32>
    %cst_81 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %639 = stablehlo.reduce(%635 init: %cst_81) applies stablehlo.add across dimensions = [0] : (tensor<64x48xf32>, tensor<f32>) -> tensor<48xf32>
    %640 = stablehlo.reshape %636 : (tensor<64x16xf32>) -> tensor<8x8x16xf32>
    %641 = sdy.sharding_constraint %638 <@mesh, [{}, {}]> : tensor<48x16xf32>
    %642 = sdy.sharding_constraint %641 <@mesh, [{"fsdp"}, {}]> : tensor<48x16xf32>
    %643 = stablehlo.optimization_barrier %642 : tensor<48x16xf32>
    %644 = sdy.sharding_constraint %639 <@mesh, [{}]> : tensor<48xf32>
    %645 = sdy.sharding_constraint %644 <@mesh, [{"fsdp"}]> : tensor<48xf32>
    %646 = stablehlo.optimization_barrier %645 : tensor<48xf32>
    %647 = stablehlo.broadcast_in_dim %155, dims = [0, 1, 2] : (tensor<8x8x1xf32>) -> tensor<8x8x16xf32>
    %648 = stablehlo.subtract %66#12, %647 : tensor<8x8x16xf32>
    %649 = stablehlo.broadcast_in_dim %165, dims = [0, 1, 2] : (tensor<8x8x1xf32>) -> tensor<8x8x16xf32>
    %650 = stablehlo.multiply %648, %649 : tensor<8x8x16xf32>
    %651 = stablehlo.broadcast_in_dim %468, dims = [2] : (tensor<16xf32>) -> tensor<1x1x16xf32>
    %652 = stablehlo.broadcast_in_dim %651, dims = [0, 1, 2] : (tensor<1x1x16xf32>) -> tensor<8x8x16xf32>
    %653 = stablehlo.multiply %640, %652 : tensor<8x8x16xf32>
    %cst_82 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %654 = stablehlo.reduce(%653 init: %cst_82) applies stablehlo.add across dimensions = [2] : (tensor<8x8x16xf32>, tensor<f32>) -> tensor<8x8xf32>
    %655 = stablehlo.broadcast_in_dim %654, dims = [0, 1] : (tensor<8x8xf32>) -> tensor<8x8x1xf32>
    %cst_83 = stablehlo.constant dense<1.600000e+01> : tensor<f32>
    %656 = stablehlo.broadcast_in_dim %cst_83, dims = [] : (tensor<f32>) -> tensor<8x8x1xf32>
    %657 = stablehlo.divide %655, %656 : tensor<8x8x1xf32>
    %658 = stablehlo.multiply %653, %650 : tensor<8x8x16xf32>
    %cst_84 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %659 = stablehlo.reduce(%658 init: %cst_84) applies stablehlo.add across dimensions = [2] : (tensor<8x8x16xf32>, tensor<f32>) -> tensor<8x8xf32>
    %660 = stablehlo.broadcast_in_dim %659, dims = [0, 1] : (tensor<8x8xf32>) -> tensor<8x8x1xf32>
    %cst_85 = stablehlo.constant dense<1.600000e+01> : tensor<f32>
    %661 = stablehlo.broadcast_in_dim %cst_85, dims = [] : (tensor<f32>) -> tensor<8x8x1xf32>
    %662 = stablehlo.divide %660, %661 : tensor<8x8x1xf32>
    %663 = stablehlo.broadcast_in_dim %657, dims = [0, 1, 2] : (tensor<8x8x1xf32>) -> tensor<8x8x16xf32>
    %664 = stablehlo.subtract %653, %663 : tensor<8x8x16xf32>
    %665 = stablehlo.broadcast_in_dim %662, dims = [0, 1, 2] : (tensor<8x8x1xf32>) -> tensor<8x8x16xf32>
    %666 = stablehlo.multiply %650, %665 : tensor<8x8x16xf32>
    %667 = stablehlo.subtract %664, %666 : tensor<8x8x16xf32>
    %668 = stablehlo.broadcast_in_dim %165, dims = [0, 1, 2] : (tensor<8x8x1xf32>) -> tensor<8x8x16xf32>
    %669 = stablehlo.multiply %668, %667 : tensor<8x8x16xf32>
    %670 = stablehlo.multiply %640, %650 : tensor<8x8x16xf32>
    %cst_86 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %671 = stablehlo.reduce(%670 init: %cst_86) applies stablehlo.add across dimensions = [0, 1] : (tensor<8x8x16xf32>, tensor<f32>) -> tensor<16xf32>
    %cst_87 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %672 = stablehlo.reduce(%640 init: %cst_87) applies stablehlo.add across dimensions = [0, 1] : (tensor<8x8x16xf32>, tensor<f32>) -> tensor<16xf32>
    %673 = stablehlo.add %571, %669 : tensor<8x8x16xf32>
    %674 = sdy.sharding_constraint %671 <@mesh, [{}]> : tensor<16xf32>
    %675 = sdy.sharding_constraint %674 <@mesh, [{"fsdp"}]> : tensor<16xf32>
    %676 = stablehlo.optimization_barrier %675 : tensor<16xf32>
    %677 = sdy.sharding_constraint %672 <@mesh, [{}]> : tensor<16xf32>
    %678 = sdy.sharding_constraint %677 <@mesh, [{"fsdp"}]> : tensor<16xf32>
    %679 = stablehlo.optimization_barrier %678 : tensor<16xf32>
    %cst_88 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %680 = stablehlo.reduce(%673 init: %cst_88) applies stablehlo.add across dimensions = [0] : (tensor<8x8x16xf32>, tensor<f32>) -> tensor<8x16xf32>
    %681 = stablehlo.broadcast_in_dim %680, dims = [1, 2] : (tensor<8x16xf32>) -> tensor<1x8x16xf32>
    %682 = stablehlo.reshape %681 : (tensor<1x8x16xf32>) -> tensor<8x16xf32>
    %cst_89 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %683 = stablehlo.broadcast_in_dim %cst_89, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %684 = stablehlo.convert %4 : (tensor<8xi64>) -> tensor<8xi32>
    %685 = stablehlo.broadcast_in_dim %684, dims = [0] : (tensor<8xi32>) -> tensor<8x1xi32>
    %686 = "stablehlo.scatter"(%683, %685, %682) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>, unique_indices = false}> ({
    ^bb0(%arg55: tensor<f32>, %arg56: tensor<f32>):
      %1428 = stablehlo.add %arg55, %arg56 : tensor<f32>
      stablehlo.return %1428 : tensor<f32>
    }) : (tensor<8x16xf32>, tensor<8x1xi32>, tensor<8x16xf32>) -> tensor<8x16xf32>
    %687 = sdy.sharding_constraint %686 <@mesh, [{}, {}]> : tensor<8x16xf32>
    %688 = sdy.sharding_constraint %687 <@mesh, [{}, {"fsdp"}]> : tensor<8x16xf32>
    %689 = stablehlo.optimization_barrier %688 : tensor<8x16xf32>
    %690 = stablehlo.reshape %arg5 : (tensor<8x8xi64>) -> tensor<64xi64>
    %691 = stablehlo.reshape %673 : (tensor<8x8x16xf32>) -> tensor<64x16xf32>
    %cst_90 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %692 = stablehlo.broadcast_in_dim %cst_90, dims = [] : (tensor<f32>) -> tensor<32x16xf32>
    %693 = stablehlo.convert %690 : (tensor<64xi64>) -> tensor<64xi32>
    %694 = stablehlo.broadcast_in_dim %693, dims = [0] : (tensor<64xi32>) -> tensor<64x1xi32>
    %695 = "stablehlo.scatter"(%692, %694, %691) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>, unique_indices = false}> ({
    ^bb0(%arg55: tensor<f32>, %arg56: tensor<f32>):
      %1428 = stablehlo.add %arg55, %arg56 : tensor<f32>
      stablehlo.return %1428 : tensor<f32>
    }) : (tensor<32x16xf32>, tensor<64x1xi32>, tensor<64x16xf32>) -> tensor<32x16xf32>
    %696 = sdy.sharding_constraint %695 <@mesh, [{}, {}]> : tensor<32x16xf32>
    %697 = sdy.sharding_constraint %696 <@mesh, [{"fsdp"}, {}]> : tensor<32x16xf32>
    %698 = stablehlo.optimization_barrier %697 : tensor<32x16xf32>
    %699 = stablehlo.reshape %698 : (tensor<32x16xf32>) -> tensor<8x4x16xf32>
    %700 = stablehlo.reshape %699 : (tensor<8x4x16xf32>) -> tensor<8x64xf32>
    %701 = sdy.sharding_constraint %700 <@mesh, [{"fsdp"}, {}]> : tensor<8x64xf32>
    %702 = chlo.square %701 : tensor<8x64xf32> -> tensor<8x64xf32>
    %cst_91 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %703 = stablehlo.reduce(%702 init: %cst_91) applies stablehlo.add across dimensions = [1] : (tensor<8x64xf32>, tensor<f32>) -> tensor<8xf32>
    %704 = stablehlo.broadcast_in_dim %703, dims = [0] : (tensor<8xf32>) -> tensor<8x1xf32>
    %705 = stablehlo.transpose %689, dims = [1, 0] : (tensor<8x16xf32>) -> tensor<16x8xf32>
    %706 = stablehlo.reshape %705 : (tensor<16x8xf32>) -> tensor<8x2x8xf32>
    %707 = stablehlo.reshape %706 : (tensor<8x2x8xf32>) -> tensor<8x16xf32>
    %708 = sdy.sharding_constraint %707 <@mesh, [{"fsdp"}, {}]> : tensor<8x16xf32>
    %709 = chlo.square %708 : tensor<8x16xf32> -> tensor<8x16xf32>
    %cst_92 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %710 = stablehlo.reduce(%709 init: %cst_92) applies stablehlo.add across dimensions = [1] : (tensor<8x16xf32>, tensor<f32>) -> tensor<8xf32>
    %711 = stablehlo.broadcast_in_dim %710, dims = [0] : (tensor<8xf32>) -> tensor<8x1xf32>
    %712 = stablehlo.reshape %676 : (tensor<16xf32>) -> tensor<16x1xf32>
    %713 = stablehlo.reshape %712 : (tensor<16x1xf32>) -> tensor<8x2x1xf32>
    %714 = stablehlo.reshape %713 : (tensor<8x2x1xf32>) -> tensor<8x2xf32>
    %715 = sdy.sharding_constraint %714 <@mesh, [{"fsdp"}, {}]> : tensor<8x2xf32>
    %716 = chlo.square %715 : tensor<8x2xf32> -> tensor<8x2xf32>
    %cst_93 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %717 = stablehlo.reduce(%716 init: %cst_93) applies stablehlo.add across dimensions = [1] : (tensor<8x2xf32>, tensor<f32>) -> tensor<8xf32>
    %718 = stablehlo.broadcast_in_dim %717, dims = [0] : (tensor<8xf32>) -> tensor<8x1xf32>
    %719 = stablehlo.reshape %679 : (tensor<16xf32>) -> tensor<16x1xf32>
    %720 = stablehlo.reshape %719 : (tensor<16x1xf32>) -> tensor<8x2x1xf32>
    %721 = stablehlo.reshape %720 : (tensor<8x2x1xf32>) -> tensor<8x2xf32>
    %722 = sdy.sharding_constraint %721 <@mesh, [{"fsdp"}, {}]> : tensor<8x2xf32>
    %723 = chlo.square %722 : tensor<8x2xf32> -> tensor<8x2xf32>
    %cst_94 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %724 = stablehlo.reduce(%723 init: %cst_94) applies stablehlo.add across dimensions = [1] : (tensor<8x2xf32>, tensor<f32>) -> tensor<8xf32>
    %725 = stablehlo.broadcast_in_dim %724, dims = [0] : (tensor<8xf32>) -> tensor<8x1xf32>
    %726 = stablehlo.reshape %643 : (tensor<48x16xf32>) -> tensor<8x6x16xf32>
    %727 = stablehlo.reshape %726 : (tensor<8x6x16xf32>) -> tensor<8x96xf32>
    %728 = sdy.sharding_constraint %727 <@mesh, [{"fsdp"}, {}]> : tensor<8x96xf32>
    %729 = chlo.square %728 : tensor<8x96xf32> -> tensor<8x96xf32>
    %cst_95 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %730 = stablehlo.reduce(%729 init: %cst_95) applies stablehlo.add across dimensions = [1] : (tensor<8x96xf32>, tensor<f32>) -> tensor<8xf32>
    %731 = stablehlo.broadcast_in_dim %730, dims = [0] : (tensor<8xf32>) -> tensor<8x1xf32>
    %732 = stablehlo.reshape %646 : (tensor<48xf32>) -> tensor<48x1xf32>
    %733 = stablehlo.reshape %732 : (tensor<48x1xf32>) -> tensor<8x6x1xf32>
    %734 = stablehlo.reshape %733 : (tensor<8x6x1xf32>) -> tensor<8x6xf32>
    %735 = sdy.sharding_constraint %734 <@mesh, [{"fsdp"}, {}]> : tensor<8x6xf32>
    %736 = chlo.square %735 : tensor<8x6xf32> -> tensor<8x6xf32>
    %cst_96 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %737 = stablehlo.reduce(%736 init: %cst_96) applies stablehlo.add across dimensions = [1] : (tensor<8x6xf32>, tensor<f32>) -> tensor<8xf32>
    %738 = stablehlo.broadcast_in_dim %737, dims = [0] : (tensor<8xf32>) -> tensor<8x1xf32>
    %739 = stablehlo.reshape %587 : (tensor<16x16xf32>) -> tensor<8x2x16xf32>
    %740 = stablehlo.reshape %739 : (tensor<8x2x16xf32>) -> tensor<8x32xf32>
    %741 = sdy.sharding_constraint %740 <@mesh, [{"fsdp"}, {}]> : tensor<8x32xf32>
    %742 = chlo.square %741 : tensor<8x32xf32> -> tensor<8x32xf32>
    %cst_97 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %743 = stablehlo.reduce(%742 init: %cst_97) applies stablehlo.add across dimensions = [1] : (tensor<8x32xf32>, tensor<f32>) -> tensor<8xf32>
    %744 = stablehlo.broadcast_in_dim %743, dims = [0] : (tensor<8xf32>) -> tensor<8x1xf32>
    %745 = stablehlo.reshape %590 : (tensor<16xf32>) -> tensor<16x1xf32>
    %746 = stablehlo.reshape %745 : (tensor<16x1xf32>) -> tensor<8x2x1xf32>
    %747 = stablehlo.reshape %746 : (tensor<8x2x1xf32>) -> tensor<8x2xf32>
    %748 = sdy.sharding_constraint %747 <@mesh, [{"fsdp"}, {}]> : tensor<8x2xf32>
    %749 = chlo.square %748 : tensor<8x2xf32> -> tensor<8x2xf32>
    %cst_98 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %750 = stablehlo.reduce(%749 init: %cst_98) applies stablehlo.add across dimensions = [1] : (tensor<8x2xf32>, tensor<f32>) -> tensor<8xf32>
    %751 = stablehlo.broadcast_in_dim %750, dims = [0] : (tensor<8xf32>) -> tensor<8x1xf32>
    %752 = stablehlo.reshape %574 : (tensor<16xf32>) -> tensor<16x1xf32>
    %753 = stablehlo.reshape %752 : (tensor<16x1xf32>) -> tensor<8x2x1xf32>
    %754 = stablehlo.reshape %753 : (tensor<8x2x1xf32>) -> tensor<8x2xf32>
    %755 = sdy.sharding_constraint %754 <@mesh, [{"fsdp"}, {}]> : tensor<8x2xf32>
    %756 = chlo.square %755 : tensor<8x2xf32> -> tensor<8x2xf32>
    %cst_99 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %757 = stablehlo.reduce(%756 init: %cst_99) applies stablehlo.add across dimensions = [1] : (tensor<8x2xf32>, tensor<f32>) -> tensor<8xf32>
    %758 = stablehlo.broadcast_in_dim %757, dims = [0] : (tensor<8xf32>) -> tensor<8x1xf32>
    %759 = stablehlo.reshape %577 : (tensor<16xf32>) -> tensor<16x1xf32>
    %760 = stablehlo.reshape %759 : (tensor<16x1xf32>) -> tensor<8x2x1xf32>
    %761 = stablehlo.reshape %760 : (tensor<8x2x1xf32>) -> tensor<8x2xf32>
    %762 = sdy.sharding_constraint %761 <@mesh, [{"fsdp"}, {}]> : tensor<8x2xf32>
    %763 = chlo.square %762 : tensor<8x2xf32> -> tensor<8x2xf32>
    %cst_100 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %764 = stablehlo.reduce(%763 init: %cst_100) applies stablehlo.add across dimensions = [1] : (tensor<8x2xf32>, tensor<f32>) -> tensor<8xf32>
    %765 = stablehlo.broadcast_in_dim %764, dims = [0] : (tensor<8xf32>) -> tensor<8x1xf32>
    %766 = stablehlo.reshape %541 : (tensor<64x16xf32>) -> tensor<8x8x16xf32>
    %767 = stablehlo.reshape %766 : (tensor<8x8x16xf32>) -> tensor<8x128xf32>
    %768 = sdy.sharding_constraint %767 <@mesh, [{"fsdp"}, {}]> : tensor<8x128xf32>
    %769 = chlo.square %768 : tensor<8x128xf32> -> tensor<8x128xf32>
    %cst_101 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %770 = stablehlo.reduce(%769 init: %cst_101) applies stablehlo.add across dimensions = [1] : (tensor<8x128xf32>, tensor<f32>) -> tensor<8xf32>
    %771 = stablehlo.broadcast_in_dim %770, dims = [0] : (tensor<8xf32>) -> tensor<8x1xf32>
    %772 = stablehlo.reshape %544 : (tensor<64xf32>) -> tensor<64x1xf32>
    %773 = stablehlo.reshape %772 : (tensor<64x1xf32>) -> tensor<8x8x1xf32>
    %774 = stablehlo.reshape %773 : (tensor<8x8x1xf32>) -> tensor<8x8xf32>
    %775 = sdy.sharding_constraint %774 <@mesh, [{"fsdp"}, {}]> : tensor<8x8xf32>
    %776 = chlo.square %775 : tensor<8x8xf32> -> tensor<8x8xf32>
    %cst_102 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %777 = stablehlo.reduce(%776 init: %cst_102) applies stablehlo.add across dimensions = [1] : (tensor<8x8xf32>, tensor<f32>) -> tensor<8xf32>
    %778 = stablehlo.broadcast_in_dim %777, dims = [0] : (tensor<8xf32>) -> tensor<8x1xf32>
    %779 = stablehlo.transpose %501, dims = [1, 0] : (tensor<16x64xf32>) -> tensor<64x16xf32>
    %780 = stablehlo.reshape %779 : (tensor<64x16xf32>) -> tensor<8x8x16xf32>
    %781 = stablehlo.reshape %780 : (tensor<8x8x16xf32>) -> tensor<8x128xf32>
    %782 = sdy.sharding_constraint %781 <@mesh, [{"fsdp"}, {}]> : tensor<8x128xf32>
    %783 = chlo.square %782 : tensor<8x128xf32> -> tensor<8x128xf32>
    %cst_103 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %784 = stablehlo.reduce(%783 init: %cst_103) applies stablehlo.add across dimensions = [1] : (tensor<8x128xf32>, tensor<f32>) -> tensor<8xf32>
    %785 = stablehlo.broadcast_in_dim %784, dims = [0] : (tensor<8xf32>) -> tensor<8x1xf32>
    %786 = stablehlo.reshape %504 : (tensor<16xf32>) -> tensor<16x1xf32>
    %787 = stablehlo.reshape %786 : (tensor<16x1xf32>) -> tensor<8x2x1xf32>
    %788 = stablehlo.reshape %787 : (tensor<8x2x1xf32>) -> tensor<8x2xf32>
    %789 = sdy.sharding_constraint %788 <@mesh, [{"fsdp"}, {}]> : tensor<8x2xf32>
    %790 = chlo.square %789 : tensor<8x2xf32> -> tensor<8x2xf32>
    %cst_104 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %791 = stablehlo.reduce(%790 init: %cst_104) applies stablehlo.add across dimensions = [1] : (tensor<8x2xf32>, tensor<f32>) -> tensor<8xf32>
    %792 = stablehlo.broadcast_in_dim %791, dims = [0] : (tensor<8xf32>) -> tensor<8x1xf32>
    %793 = stablehlo.reshape %402 : (tensor<16xf32>) -> tensor<16x1xf32>
    %794 = stablehlo.reshape %793 : (tensor<16x1xf32>) -> tensor<8x2x1xf32>
    %795 = stablehlo.reshape %794 : (tensor<8x2x1xf32>) -> tensor<8x2xf32>
    %796 = sdy.sharding_constraint %795 <@mesh, [{"fsdp"}, {}]> : tensor<8x2xf32>
    %797 = chlo.square %796 : tensor<8x2xf32> -> tensor<8x2xf32>
    %cst_105 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %798 = stablehlo.reduce(%797 init: %cst_105) applies stablehlo.add across dimensions = [1] : (tensor<8x2xf32>, tensor<f32>) -> tensor<8xf32>
    %799 = stablehlo.broadcast_in_dim %798, dims = [0] : (tensor<8xf32>) -> tensor<8x1xf32>
    %800 = stablehlo.reshape %405 : (tensor<16xf32>) -> tensor<16x1xf32>
    %801 = stablehlo.reshape %800 : (tensor<16x1xf32>) -> tensor<8x2x1xf32>
    %802 = stablehlo.reshape %801 : (tensor<8x2x1xf32>) -> tensor<8x2xf32>
    %803 = sdy.sharding_constraint %802 <@mesh, [{"fsdp"}, {}]> : tensor<8x2xf32>
    %804 = chlo.square %803 : tensor<8x2xf32> -> tensor<8x2xf32>
    %cst_106 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %805 = stablehlo.reduce(%804 init: %cst_106) applies stablehlo.add across dimensions = [1] : (tensor<8x2xf32>, tensor<f32>) -> tensor<8xf32>
    %806 = stablehlo.broadcast_in_dim %805, dims = [0] : (tensor<8xf32>) -> tensor<8x1xf32>
    %807 = stablehlo.reshape %373 : (tensor<32x16xf32>) -> tensor<8x4x16xf32>
    %808 = stablehlo.reshape %807 : (tensor<8x4x16xf32>) -> tensor<8x64xf32>
    %809 = sdy.sharding_constraint %808 <@mesh, [{"fsdp"}, {}]> : tensor<8x64xf32>
    %810 = chlo.square %809 : tensor<8x64xf32> -> tensor<8x64xf32>
    %cst_107 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %811 = stablehlo.reduce(%810 init: %cst_107) applies stablehlo.add across dimensions = [1] : (tensor<8x64xf32>, tensor<f32>) -> tensor<8xf32>
    %812 = stablehlo.broadcast_in_dim %811, dims = [0] : (tensor<8xf32>) -> tensor<8x1xf32>
    %813 = stablehlo.concatenate %704, %711, %718, %725, %731, %738, %744, %751, %758, %765, %771, %778, %785, %792, %799, %806, dim = 1 : (tensor<8x1xf32>, tensor<8x1xf32>, tensor<8x1xf32>, tensor<8x1xf32>, tensor<8x1xf32>, tensor<8x1xf32>, tensor<8x1xf32>, tensor<8x1xf32>, tensor<8x1xf32>, tensor<8x1xf32>, tensor<8x1xf32>, tensor<8x1xf32>, tensor<8x1xf32>, tensor<8x1xf32>, tensor<8x1xf32>, tensor<8x1xf32>) -> tensor<8x16xf32>
    %814 = stablehlo.concatenate %812, dim = 1 : (tensor<8x1xf32>) -> tensor<8x1xf32>
    %815 = stablehlo.concatenate %813, %814, dim = 1 : (tensor<8x16xf32>, tensor<8x1xf32>) -> tensor<8x17xf32>
    %816 = sdy.sharding_constraint %815 <@mesh, [{"fsdp"}, {}]> : tensor<8x17xf32>
    %cst_108 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %817 = stablehlo.reduce(%816 init: %cst_108) applies stablehlo.add across dimensions = [0] : (tensor<8x17xf32>, tensor<f32>) -> tensor<17xf32>
    %818 = stablehlo.sqrt %817 : tensor<17xf32>
    %819 = stablehlo.abs %818 : tensor<17xf32>
    %820 = stablehlo.multiply %819, %819 : tensor<17xf32>
    %cst_109 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %821 = stablehlo.reduce(%820 init: %cst_109) applies stablehlo.add across dimensions = [0] : (tensor<17xf32>, tensor<f32>) -> tensor<f32>
    %822 = stablehlo.sqrt %821 : tensor<f32>
    %823 = stablehlo.slice %arg53 [0:1] : (tensor<10xf64>) -> tensor<1xf64>
    %824 = stablehlo.reshape %823 : (tensor<1xf64>) -> tensor<f64>
    %825 = stablehlo.convert %824 : (tensor<f64>) -> tensor<f32>
    %826 = stablehlo.add %822, %825 : tensor<f32>
    %cst_110 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %827 = stablehlo.divide %cst_110, %826 : tensor<f32>
    %828 = stablehlo.slice %arg53 [1:2] : (tensor<10xf64>) -> tensor<1xf64>
    %829 = stablehlo.reshape %828 : (tensor<1xf64>) -> tensor<f64>
    %830 = stablehlo.convert %829 : (tensor<f64>) -> tensor<f32>
    %831 = stablehlo.multiply %827, %830 : tensor<f32>
    %832 = stablehlo.slice %arg53 [2:3] : (tensor<10xf64>) -> tensor<1xf64>
    %833 = stablehlo.reshape %832 : (tensor<1xf64>) -> tensor<f64>
    %834 = stablehlo.convert %833 : (tensor<f64>) -> tensor<f32>
    %835 = stablehlo.minimum %831, %834 : tensor<f32>
    %836 = stablehlo.broadcast_in_dim %835, dims = [] : (tensor<f32>) -> tensor<32x16xf32>
    %837 = stablehlo.multiply %698, %836 : tensor<32x16xf32>
    %838 = stablehlo.broadcast_in_dim %835, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %839 = stablehlo.multiply %689, %838 : tensor<8x16xf32>
    %840 = stablehlo.broadcast_in_dim %835, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %841 = stablehlo.multiply %676, %840 : tensor<16xf32>
    %842 = stablehlo.broadcast_in_dim %835, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %843 = stablehlo.multiply %679, %842 : tensor<16xf32>
    %844 = stablehlo.broadcast_in_dim %835, dims = [] : (tensor<f32>) -> tensor<48x16xf32>
    %845 = stablehlo.multiply %643, %844 : tensor<48x16xf32>
    %846 = stablehlo.broadcast_in_dim %835, dims = [] : (tensor<f32>) -> tensor<48xf32>
    %847 = stablehlo.multiply %646, %846 : tensor<48xf32>
    %848 = stablehlo.broadcast_in_dim %835, dims = [] : (tensor<f32>) -> tensor<16x16xf32>
    %849 = stablehlo.multiply %587, %848 : tensor<16x16xf32>
    %850 = stablehlo.broadcast_in_dim %835, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %851 = stablehlo.multiply %590, %850 : tensor<16xf32>
    %852 = stablehlo.broadcast_in_dim %835, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %853 = stablehlo.multiply %574, %852 : tensor<16xf32>
    %854 = stablehlo.broadcast_in_dim %835, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %855 = stablehlo.multiply %577, %854 : tensor<16xf32>
    %856 = stablehlo.broadcast_in_dim %835, dims = [] : (tensor<f32>) -> tensor<64x16xf32>
    %857 = stablehlo.multiply %541, %856 : tensor<64x16xf32>
    %858 = stablehlo.broadcast_in_dim %835, dims = [] : (tensor<f32>) -> tensor<64xf32>
    %859 = stablehlo.multiply %544, %858 : tensor<64xf32>
    %860 = stablehlo.broadcast_in_dim %835, dims = [] : (tensor<f32>) -> tensor<16x64xf32>
    %861 = stablehlo.multiply %501, %860 : tensor<16x64xf32>
    %862 = stablehlo.broadcast_in_dim %835, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %863 = stablehlo.multiply %504, %862 : tensor<16xf32>
    %864 = stablehlo.broadcast_in_dim %835, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %865 = stablehlo.multiply %402, %864 : tensor<16xf32>
    %866 = stablehlo.broadcast_in_dim %835, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %867 = stablehlo.multiply %405, %866 : tensor<16xf32>
    %868 = stablehlo.broadcast_in_dim %835, dims = [] : (tensor<f32>) -> tensor<32x16xf32>
    %869 = stablehlo.multiply %373, %868 : tensor<32x16xf32>
    %870 = stablehlo.slice %arg53 [3:4] : (tensor<10xf64>) -> tensor<1xf64>
    %871 = stablehlo.reshape %870 : (tensor<1xf64>) -> tensor<f64>
    %872 = stablehlo.convert %871 : (tensor<f64>) -> tensor<f32>
    %873 = stablehlo.broadcast_in_dim %872, dims = [] : (tensor<f32>) -> tensor<32x16xf32>
    %874 = stablehlo.multiply %arg0, %873 : tensor<32x16xf32>
    %875 = stablehlo.convert %871 : (tensor<f64>) -> tensor<f32>
    %876 = stablehlo.broadcast_in_dim %875, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %877 = stablehlo.multiply %arg1, %876 : tensor<8x16xf32>
    %878 = stablehlo.convert %871 : (tensor<f64>) -> tensor<f32>
    %879 = stablehlo.broadcast_in_dim %878, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %880 = stablehlo.multiply %arg6, %879 : tensor<16xf32>
    %881 = stablehlo.convert %871 : (tensor<f64>) -> tensor<f32>
    %882 = stablehlo.broadcast_in_dim %881, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %883 = stablehlo.multiply %arg7, %882 : tensor<16xf32>
    %884 = stablehlo.convert %871 : (tensor<f64>) -> tensor<f32>
    %885 = stablehlo.broadcast_in_dim %884, dims = [] : (tensor<f32>) -> tensor<48x16xf32>
    %886 = stablehlo.multiply %arg8, %885 : tensor<48x16xf32>
    %887 = stablehlo.convert %871 : (tensor<f64>) -> tensor<f32>
    %888 = stablehlo.broadcast_in_dim %887, dims = [] : (tensor<f32>) -> tensor<48xf32>
    %889 = stablehlo.multiply %arg9, %888 : tensor<48xf32>
    %890 = stablehlo.convert %871 : (tensor<f64>) -> tensor<f32>
    %891 = stablehlo.broadcast_in_dim %890, dims = [] : (tensor<f32>) -> tensor<16x16xf32>
    %892 = stablehlo.multiply %arg10, %891 : tensor<16x16xf32>
    %893 = stablehlo.convert %871 : (tensor<f64>) -> tensor<f32>
    %894 = stablehlo.broadcast_in_dim %893, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %895 = stablehlo.multiply %arg11, %894 : tensor<16xf32>
    %896 = stablehlo.convert %871 : (tensor<f64>) -> tensor<f32>
    %897 = stablehlo.broadcast_in_dim %896, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %898 = stablehlo.multiply %arg12, %897 : tensor<16xf32>
    %899 = stablehlo.convert %871 : (tensor<f64>) -> tensor<f32>
    %900 = stablehlo.broadcast_in_dim %899, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %901 = stablehlo.multiply %arg13, %900 : tensor<16xf32>
    %902 = stablehlo.convert %871 : (tensor<f64>) -> tensor<f32>
    %903 = stablehlo.broadcast_in_dim %902, dims = [] : (tensor<f32>) -> tensor<64x16xf32>
    %904 = stablehlo.multiply %arg14, %903 : tensor<64x16xf32>
    %905 = stablehlo.convert %871 : (tensor<f64>) -> tensor<f32>
    %906 = stablehlo.broadcast_in_dim %905, dims = [] : (tensor<f32>) -> tensor<64xf32>
    %907 = stablehlo.multiply %arg15, %906 : tensor<64xf32>
    %908 = stablehlo.convert %871 : (tensor<f64>) -> tensor<f32>
    %909 = stablehlo.broadcast_in_dim %908, dims = [] : (tensor<f32>) -> tensor<16x64xf32>
    %910 = stablehlo.multiply %arg16, %909 : tensor<16x64xf32>
    %911 = stablehlo.convert %871 : (tensor<f64>) -> tensor<f32>
    %912 = stablehlo.broadcast_in_dim %911, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %913 = stablehlo.multiply %arg17, %912 : tensor<16xf32>
    %914 = stablehlo.convert %871 : (tensor<f64>) -> tensor<f32>
    %915 = stablehlo.broadcast_in_dim %914, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %916 = stablehlo.multiply %arg2, %915 : tensor<16xf32>
    %917 = stablehlo.convert %871 : (tensor<f64>) -> tensor<f32>
    %918 = stablehlo.broadcast_in_dim %917, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %919 = stablehlo.multiply %arg3, %918 : tensor<16xf32>
    %920 = stablehlo.convert %871 : (tensor<f64>) -> tensor<f32>
    %921 = stablehlo.broadcast_in_dim %920, dims = [] : (tensor<f32>) -> tensor<32x16xf32>
    %922 = stablehlo.multiply %arg4, %921 : tensor<32x16xf32>
    %923 = stablehlo.slice %arg53 [4:5] : (tensor<10xf64>) -> tensor<1xf64>
    %924 = stablehlo.reshape %923 : (tensor<1xf64>) -> tensor<f64>
    %925 = stablehlo.convert %924 : (tensor<f64>) -> tensor<f32>
    %cst_111 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %926 = stablehlo.compare LT, %925, %cst_111, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %927 = call @_where_9(%926, %arg19, %837) : (tensor<i1>, tensor<32x16xf32>, tensor<32x16xf32>) -> tensor<32x16xf32>
    %cst_112 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %928 = stablehlo.subtract %925, %cst_112 : tensor<f32>
    %929 = call @_where_10(%926, %925, %928) : (tensor<i1>, tensor<f32>, tensor<f32>) -> tensor<f32>
    %930 = stablehlo.subtract %837, %arg19 : tensor<32x16xf32>
    %931 = stablehlo.broadcast_in_dim %929, dims = [] : (tensor<f32>) -> tensor<32x16xf32>
    %932 = stablehlo.multiply %931, %930 : tensor<32x16xf32>
    %933 = stablehlo.add %927, %932 : tensor<32x16xf32>
    %934 = stablehlo.convert %924 : (tensor<f64>) -> tensor<f32>
    %cst_113 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %935 = stablehlo.compare LT, %934, %cst_113, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %936 = call @_where_11(%935, %arg20, %839) : (tensor<i1>, tensor<8x16xf32>, tensor<8x16xf32>) -> tensor<8x16xf32>
    %cst_114 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %937 = stablehlo.subtract %934, %cst_114 : tensor<f32>
    %938 = call @_where_10(%935, %934, %937) : (tensor<i1>, tensor<f32>, tensor<f32>) -> tensor<f32>
    %939 = stablehlo.subtract %839, %arg20 : tensor<8x16xf32>
    %940 = stablehlo.broadcast_in_dim %938, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %941 = stablehlo.multiply %940, %939 : tensor<8x16xf32>
    %942 = stablehlo.add %936, %941 : tensor<8x16xf32>
    %943 = stablehlo.convert %924 : (tensor<f64>) -> tensor<f32>
    %cst_115 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %944 = stablehlo.compare LT, %943, %cst_115, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %945 = call @_where_12(%944, %arg21, %841) : (tensor<i1>, tensor<16xf32>, tensor<16xf32>) -> tensor<16xf32>
    %cst_116 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %946 = stablehlo.subtract %943, %cst_116 : tensor<f32>
    %947 = call @_where_10(%944, %943, %946) : (tensor<i1>, tensor<f32>, tensor<f32>) -> tensor<f32>
    %948 = stablehlo.subtract %841, %arg21 : tensor<16xf32>
    %949 = stablehlo.broadcast_in_dim %947, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %950 = stablehlo.multiply %949, %948 : tensor<16xf32>
    %951 = stablehlo.add %945, %950 : tensor<16xf32>
    %952 = stablehlo.convert %924 : (tensor<f64>) -> tensor<f32>
    %cst_117 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %953 = stablehlo.compare LT, %952, %cst_117, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %954 = call @_where_12(%953, %arg22, %843) : (tensor<i1>, tensor<16xf32>, tensor<16xf32>) -> tensor<16xf32>
    %cst_118 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %955 = stablehlo.subtract %952, %cst_118 : tensor<f32>
    %956 = call @_where_10(%953, %952, %955) : (tensor<i1>, tensor<f32>, tensor<f32>) -> tensor<f32>
    %957 = stablehlo.subtract %843, %arg22 : tensor<16xf32>
    %958 = stablehlo.broadcast_in_dim %956, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %959 = stablehlo.multiply %958, %957 : tensor<16xf32>
    %960 = stablehlo.add %954, %959 : tensor<16xf32>
    %961 = stablehlo.convert %924 : (tensor<f64>) -> tensor<f32>
    %cst_119 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %962 = stablehlo.compare LT, %961, %cst_119, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %963 = call @_where_13(%962, %arg23, %845) : (tensor<i1>, tensor<48x16xf32>, tensor<48x16xf32>) -> tensor<48x16xf32>
    %cst_120 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %964 = stablehlo.subtract %961, %cst_120 : tensor<f32>
    %965 = call @_where_10(%962, %961, %964) : (tensor<i1>, tensor<f32>, tensor<f32>) -> tensor<f32>
    %966 = stablehlo.subtract %845, %arg23 : tensor<48x16xf32>
    %967 = stablehlo.broadcast_in_dim %965, dims = [] : (tensor<f32>) -> tensor<48x16xf32>
    %968 = stablehlo.multiply %967, %966 : tensor<48x16xf32>
    %969 = stablehlo.add %963, %968 : tensor<48x16xf32>
    %970 = stablehlo.convert %924 : (tensor<f64>) -> tensor<f32>
    %cst_121 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %971 = stablehlo.compare LT, %970, %cst_121, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %972 = call @_where_14(%971, %arg24, %847) : (tensor<i1>, tensor<48xf32>, tensor<48xf32>) -> tensor<48xf32>
    %cst_122 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %973 = stablehlo.subtract %970, %cst_122 : tensor<f32>
    %974 = call @_where_10(%971, %970, %973) : (tensor<i1>, tensor<f32>, tensor<f32>) -> tensor<f32>
    %975 = stablehlo.subtract %847, %arg24 : tensor<48xf32>
    %976 = stablehlo.broadcast_in_dim %974, dims = [] : (tensor<f32>) -> tensor<48xf32>
    %977 = stablehlo.multiply %976, %975 : tensor<48xf32>
    %978 = stablehlo.add %972, %977 : tensor<48xf32>
    %979 = stablehlo.convert %924 : (tensor<f64>) -> tensor<f32>
    %cst_123 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %980 = stablehlo.compare LT, %979, %cst_123, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %981 = call @_where_15(%980, %arg25, %849) : (tensor<i1>, tensor<16x16xf32>, tensor<16x16xf32>) -> tensor<16x16xf32>
    %cst_124 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %982 = stablehlo.subtract %979, %cst_124 : tensor<f32>
    %983 = call @_where_10(%980, %979, %982) : (tensor<i1>, tensor<f32>, tensor<f32>) -> tensor<f32>
    %984 = stablehlo.subtract %849, %arg25 : tensor<16x16xf32>
    %985 = stablehlo.broadcast_in_dim %983, dims = [] : (tensor<f32>) -> tensor<16x16xf32>
    %986 = stablehlo.multiply %985, %984 : tensor<16x16xf32>
    %987 = stablehlo.add %981, %986 : tensor<16x16xf32>
    %988 = stablehlo.convert %924 : (tensor<f64>) -> tensor<f32>
    %cst_125 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %989 = stablehlo.compare LT, %988, %cst_125, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %990 = call @_where_12(%989, %arg26, %851) : (tensor<i1>, tensor<16xf32>, tensor<16xf32>) -> tensor<16xf32>
    %cst_126 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %991 = stablehlo.subtract %988, %cst_126 : tensor<f32>
    %992 = call @_where_10(%989, %988, %991) : (tensor<i1>, tensor<f32>, tensor<f32>) -> tensor<f32>
    %993 = stablehlo.subtract %851, %arg26 : tensor<16xf32>
    %994 = stablehlo.broadcast_in_dim %992, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %995 = stablehlo.multiply %994, %993 : tensor<16xf32>
    %996 = stablehlo.add %990, %995 : tensor<16xf32>
    %997 = stablehlo.convert %924 : (tensor<f64>) -> tensor<f32>
    %cst_127 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %998 = stablehlo.compare LT, %997, %cst_127, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %999 = call @_where_12(%998, %arg27, %853) : (tensor<i1>, tensor<16xf32>, tensor<16xf32>) -> tensor<16xf32>
    %cst_128 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %1000 = stablehlo.subtract %997, %cst_128 : tensor<f32>
    %1001 = call @_where_10(%998, %997, %1000) : (tensor<i1>, tensor<f32>, tensor<f32>) -> tensor<f32>
    %1002 = stablehlo.subtract %853, %arg27 : tensor<16xf32>
    %1003 = stablehlo.broadcast_in_dim %1001, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1004 = stablehlo.multiply %1003, %1002 : tensor<16xf32>
    %1005 = stablehlo.add %999, %1004 : tensor<16xf32>
    %1006 = stablehlo.convert %924 : (tensor<f64>) -> tensor<f32>
    %cst_129 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %1007 = stablehlo.compare LT, %1006, %cst_129, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %1008 = call @_where_12(%1007, %arg28, %855) : (tensor<i1>, tensor<16xf32>, tensor<16xf32>) -> tensor<16xf32>
    %cst_130 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %1009 = stablehlo.subtract %1006, %cst_130 : tensor<f32>
    %1010 = call @_where_10(%1007, %1006, %1009) : (tensor<i1>, tensor<f32>, tensor<f32>) -> tensor<f32>
    %1011 = stablehlo.subtract %855, %arg28 : tensor<16xf32>
    %1012 = stablehlo.broadcast_in_dim %1010, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1013 = stablehlo.multiply %1012, %1011 : tensor<16xf32>
    %1014 = stablehlo.add %1008, %1013 : tensor<16xf32>
    %1015 = stablehlo.convert %924 : (tensor<f64>) -> tensor<f32>
    %cst_131 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %1016 = stablehlo.compare LT, %1015, %cst_131, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %1017 = call @_where_16(%1016, %arg29, %857) : (tensor<i1>, tensor<64x16xf32>, tensor<64x16xf32>) -> tensor<64x16xf32>
    %cst_132 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %1018 = stablehlo.subtract %1015, %cst_132 : tensor<f32>
    %1019 = call @_where_10(%1016, %1015, %1018) : (tensor<i1>, tensor<f32>, tensor<f32>) -> tensor<f32>
    %1020 = stablehlo.subtract %857, %arg29 : tensor<64x16xf32>
    %1021 = stablehlo.broadcast_in_dim %1019, dims = [] : (tensor<f32>) -> tensor<64x16xf32>
    %1022 = stablehlo.multiply %1021, %1020 : tensor<64x16xf32>
    %1023 = stablehlo.add %1017, %1022 : tensor<64x16xf32>
    %1024 = stablehlo.convert %924 : (tensor<f64>) -> tensor<f32>
    %cst_133 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %1025 = stablehlo.compare LT, %1024, %cst_133, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %1026 = call @_where_17(%1025, %arg30, %859) : (tensor<i1>, tensor<64xf32>, tensor<64xf32>) -> tensor<64xf32>
    %cst_134 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %1027 = stablehlo.subtract %1024, %cst_134 : tensor<f32>
    %1028 = call @_where_10(%1025, %1024, %1027) : (tensor<i1>, tensor<f32>, tensor<f32>) -> tensor<f32>
    %1029 = stablehlo.subtract %859, %arg30 : tensor<64xf32>
    %1030 = stablehlo.broadcast_in_dim %1028, dims = [] : (tensor<f32>) -> tensor<64xf32>
    %1031 = stablehlo.multiply %1030, %1029 : tensor<64xf32>
    %1032 = stablehlo.add %1026, %1031 : tensor<64xf32>
    %1033 = stablehlo.convert %924 : (tensor<f64>) -> tensor<f32>
    %cst_135 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %1034 = stablehlo.compare LT, %1033, %cst_135, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %1035 = call @_where_18(%1034, %arg31, %861) : (tensor<i1>, tensor<16x64xf32>, tensor<16x64xf32>) -> tensor<16x64xf32>
    %cst_136 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %1036 = stablehlo.subtract %1033, %cst_136 : tensor<f32>
    %1037 = call @_where_10(%1034, %1033, %1036) : (tensor<i1>, tensor<f32>, tensor<f32>) -> tensor<f32>
    %1038 = stablehlo.subtract %861, %arg31 : tensor<16x64xf32>
    %1039 = stablehlo.broadcast_in_dim %1037, dims = [] : (tensor<f32>) -> tensor<16x64xf32>
    %1040 = stablehlo.multiply %1039, %1038 : tensor<16x64xf32>
    %1041 = stablehlo.add %1035, %1040 : tensor<16x64xf32>
    %1042 = stablehlo.convert %924 : (tensor<f64>) -> tensor<f32>
    %cst_137 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %1043 = stablehlo.compare LT, %1042, %cst_137, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %1044 = call @_where_12(%1043, %arg32, %863) : (tensor<i1>, tensor<16xf32>, tensor<16xf32>) -> tensor<16xf32>
    %cst_138 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %1045 = stablehlo.subtract %1042, %cst_138 : tensor<f32>
    %1046 = call @_where_10(%1043, %1042, %1045) : (tensor<i1>, tensor<f32>, tensor<f32>) -> tensor<f32>
    %1047 = stablehlo.subtract %863, %arg32 : tensor<16xf32>
    %1048 = stablehlo.broadcast_in_dim %1046, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1049 = stablehlo.multiply %1048, %1047 : tensor<16xf32>
    %1050 = stablehlo.add %1044, %1049 : tensor<16xf32>
    %1051 = stablehlo.convert %924 : (tensor<f64>) -> tensor<f32>
    %cst_139 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %1052 = stablehlo.compare LT, %1051, %cst_139, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %1053 = call @_where_12(%1052, %arg33, %865) : (tensor<i1>, tensor<16xf32>, tensor<16xf32>) -> tensor<16xf32>
    %cst_140 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %1054 = stablehlo.subtract %1051, %cst_140 : tensor<f32>
    %1055 = call @_where_10(%1052, %1051, %1054) : (tensor<i1>, tensor<f32>, tensor<f32>) -> tensor<f32>
    %1056 = stablehlo.subtract %865, %arg33 : tensor<16xf32>
    %1057 = stablehlo.broadcast_in_dim %1055, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1058 = stablehlo.multiply %1057, %1056 : tensor<16xf32>
    %1059 = stablehlo.add %1053, %1058 : tensor<16xf32>
    %1060 = stablehlo.convert %924 : (tensor<f64>) -> tensor<f32>
    %cst_141 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %1061 = stablehlo.compare LT, %1060, %cst_141, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %1062 = call @_where_12(%1061, %arg34, %867) : (tensor<i1>, tensor<16xf32>, tensor<16xf32>) -> tensor<16xf32>
    %cst_142 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %1063 = stablehlo.subtract %1060, %cst_142 : tensor<f32>
    %1064 = call @_where_10(%1061, %1060, %1063) : (tensor<i1>, tensor<f32>, tensor<f32>) -> tensor<f32>
    %1065 = stablehlo.subtract %867, %arg34 : tensor<16xf32>
    %1066 = stablehlo.broadcast_in_dim %1064, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1067 = stablehlo.multiply %1066, %1065 : tensor<16xf32>
    %1068 = stablehlo.add %1062, %1067 : tensor<16xf32>
    %1069 = stablehlo.convert %924 : (tensor<f64>) -> tensor<f32>
    %cst_143 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %1070 = stablehlo.compare LT, %1069, %cst_143, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %1071 = call @_where_9(%1070, %arg35, %869) : (tensor<i1>, tensor<32x16xf32>, tensor<32x16xf32>) -> tensor<32x16xf32>
    %cst_144 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %1072 = stablehlo.subtract %1069, %cst_144 : tensor<f32>
    %1073 = call @_where_10(%1070, %1069, %1072) : (tensor<i1>, tensor<f32>, tensor<f32>) -> tensor<f32>
    %1074 = stablehlo.subtract %869, %arg35 : tensor<32x16xf32>
    %1075 = stablehlo.broadcast_in_dim %1073, dims = [] : (tensor<f32>) -> tensor<32x16xf32>
    %1076 = stablehlo.multiply %1075, %1074 : tensor<32x16xf32>
    %1077 = stablehlo.add %1071, %1076 : tensor<32x16xf32>
    %1078 = stablehlo.slice %arg53 [5:6] : (tensor<10xf64>) -> tensor<1xf64>
    %1079 = stablehlo.reshape %1078 : (tensor<1xf64>) -> tensor<f64>
    %1080 = stablehlo.convert %1079 : (tensor<f64>) -> tensor<f32>
    %1081 = stablehlo.broadcast_in_dim %1080, dims = [] : (tensor<f32>) -> tensor<32x16xf32>
    %1082 = stablehlo.multiply %arg36, %1081 : tensor<32x16xf32>
    %1083 = stablehlo.convert %1079 : (tensor<f64>) -> tensor<f32>
    %1084 = stablehlo.broadcast_in_dim %1083, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %1085 = stablehlo.multiply %arg37, %1084 : tensor<8x16xf32>
    %1086 = stablehlo.convert %1079 : (tensor<f64>) -> tensor<f32>
    %1087 = stablehlo.broadcast_in_dim %1086, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1088 = stablehlo.multiply %arg38, %1087 : tensor<16xf32>
    %1089 = stablehlo.convert %1079 : (tensor<f64>) -> tensor<f32>
    %1090 = stablehlo.broadcast_in_dim %1089, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1091 = stablehlo.multiply %arg39, %1090 : tensor<16xf32>
    %1092 = stablehlo.convert %1079 : (tensor<f64>) -> tensor<f32>
    %1093 = stablehlo.broadcast_in_dim %1092, dims = [] : (tensor<f32>) -> tensor<48x16xf32>
    %1094 = stablehlo.multiply %arg40, %1093 : tensor<48x16xf32>
    %1095 = stablehlo.convert %1079 : (tensor<f64>) -> tensor<f32>
    %1096 = stablehlo.broadcast_in_dim %1095, dims = [] : (tensor<f32>) -> tensor<48xf32>
    %1097 = stablehlo.multiply %arg41, %1096 : tensor<48xf32>
    %1098 = stablehlo.convert %1079 : (tensor<f64>) -> tensor<f32>
    %1099 = stablehlo.broadcast_in_dim %1098, dims = [] : (tensor<f32>) -> tensor<16x16xf32>
    %1100 = stablehlo.multiply %arg42, %1099 : tensor<16x16xf32>
    %1101 = stablehlo.convert %1079 : (tensor<f64>) -> tensor<f32>
    %1102 = stablehlo.broadcast_in_dim %1101, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1103 = stablehlo.multiply %arg43, %1102 : tensor<16xf32>
    %1104 = stablehlo.convert %1079 : (tensor<f64>) -> tensor<f32>
    %1105 = stablehlo.broadcast_in_dim %1104, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1106 = stablehlo.multiply %arg44, %1105 : tensor<16xf32>
    %1107 = stablehlo.convert %1079 : (tensor<f64>) -> tensor<f32>
    %1108 = stablehlo.broadcast_in_dim %1107, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1109 = stablehlo.multiply %arg45, %1108 : tensor<16xf32>
    %1110 = stablehlo.convert %1079 : (tensor<f64>) -> tensor<f32>
    %1111 = stablehlo.broadcast_in_dim %1110, dims = [] : (tensor<f32>) -> tensor<64x16xf32>
    %1112 = stablehlo.multiply %arg46, %1111 : tensor<64x16xf32>
    %1113 = stablehlo.convert %1079 : (tensor<f64>) -> tensor<f32>
    %1114 = stablehlo.broadcast_in_dim %1113, dims = [] : (tensor<f32>) -> tensor<64xf32>
    %1115 = stablehlo.multiply %arg47, %1114 : tensor<64xf32>
    %1116 = stablehlo.convert %1079 : (tensor<f64>) -> tensor<f32>
    %1117 = stablehlo.broadcast_in_dim %1116, dims = [] : (tensor<f32>) -> tensor<16x64xf32>
    %1118 = stablehlo.multiply %arg48, %1117 : tensor<16x64xf32>
    %1119 = stablehlo.convert %1079 : (tensor<f64>) -> tensor<f32>
    %1120 = stablehlo.broadcast_in_dim %1119, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1121 = stablehlo.multiply %arg49, %1120 : tensor<16xf32>
    %1122 = stablehlo.convert %1079 : (tensor<f64>) -> tensor<f32>
    %1123 = stablehlo.broadcast_in_dim %1122, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1124 = stablehlo.multiply %arg50, %1123 : tensor<16xf32>
    %1125 = stablehlo.convert %1079 : (tensor<f64>) -> tensor<f32>
    %1126 = stablehlo.broadcast_in_dim %1125, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1127 = stablehlo.multiply %arg51, %1126 : tensor<16xf32>
    %1128 = stablehlo.convert %1079 : (tensor<f64>) -> tensor<f32>
    %1129 = stablehlo.broadcast_in_dim %1128, dims = [] : (tensor<f32>) -> tensor<32x16xf32>
    %1130 = stablehlo.multiply %arg52, %1129 : tensor<32x16xf32>
    %1131 = stablehlo.slice %arg53 [6:7] : (tensor<10xf64>) -> tensor<1xf64>
    %1132 = stablehlo.reshape %1131 : (tensor<1xf64>) -> tensor<f64>
    %1133 = stablehlo.convert %1132 : (tensor<f64>) -> tensor<f32>
    %1134 = stablehlo.broadcast_in_dim %1133, dims = [] : (tensor<f32>) -> tensor<32x16xf32>
    %1135 = stablehlo.multiply %1134, %837 : tensor<32x16xf32>
    %1136 = stablehlo.multiply %1135, %837 : tensor<32x16xf32>
    %1137 = stablehlo.add %1082, %1136 : tensor<32x16xf32>
    %1138 = stablehlo.convert %1132 : (tensor<f64>) -> tensor<f32>
    %1139 = stablehlo.broadcast_in_dim %1138, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %1140 = stablehlo.multiply %1139, %839 : tensor<8x16xf32>
    %1141 = stablehlo.multiply %1140, %839 : tensor<8x16xf32>
    %1142 = stablehlo.add %1085, %1141 : tensor<8x16xf32>
    %1143 = stablehlo.convert %1132 : (tensor<f64>) -> tensor<f32>
    %1144 = stablehlo.broadcast_in_dim %1143, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1145 = stablehlo.multiply %1144, %841 : tensor<16xf32>
    %1146 = stablehlo.multiply %1145, %841 : tensor<16xf32>
    %1147 = stablehlo.add %1088, %1146 : tensor<16xf32>
    %1148 = stablehlo.convert %1132 : (tensor<f64>) -> tensor<f32>
    %1149 = stablehlo.broadcast_in_dim %1148, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1150 = stablehlo.multiply %1149, %843 : tensor<16xf32>
    %1151 = stablehlo.multiply %1150, %843 : tensor<16xf32>
    %1152 = stablehlo.add %1091, %1151 : tensor<16xf32>
    %1153 = stablehlo.convert %1132 : (tensor<f64>) -> tensor<f32>
    %1154 = stablehlo.broadcast_in_dim %1153, dims = [] : (tensor<f32>) -> tensor<48x16xf32>
    %1155 = stablehlo.multiply %1154, %845 : tensor<48x16xf32>
    %1156 = stablehlo.multiply %1155, %845 : tensor<48x16xf32>
    %1157 = stablehlo.add %1094, %1156 : tensor<48x16xf32>
    %1158 = stablehlo.convert %1132 : (tensor<f64>) -> tensor<f32>
    %1159 = stablehlo.broadcast_in_dim %1158, dims = [] : (tensor<f32>) -> tensor<48xf32>
    %1160 = stablehlo.multiply %1159, %847 : tensor<48xf32>
    %1161 = stablehlo.multiply %1160, %847 : tensor<48xf32>
    %1162 = stablehlo.add %1097, %1161 : tensor<48xf32>
    %1163 = stablehlo.convert %1132 : (tensor<f64>) -> tensor<f32>
    %1164 = stablehlo.broadcast_in_dim %1163, dims = [] : (tensor<f32>) -> tensor<16x16xf32>
    %1165 = stablehlo.multiply %1164, %849 : tensor<16x16xf32>
    %1166 = stablehlo.multiply %1165, %849 : tensor<16x16xf32>
    %1167 = stablehlo.add %1100, %1166 : tensor<16x16xf32>
    %1168 = stablehlo.convert %1132 : (tensor<f64>) -> tensor<f32>
    %1169 = stablehlo.broadcast_in_dim %1168, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1170 = stablehlo.multiply %1169, %851 : tensor<16xf32>
    %1171 = stablehlo.multiply %1170, %851 : tensor<16xf32>
    %1172 = stablehlo.add %1103, %1171 : tensor<16xf32>
    %1173 = stablehlo.convert %1132 : (tensor<f64>) -> tensor<f32>
    %1174 = stablehlo.broadcast_in_dim %1173, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1175 = stablehlo.multiply %1174, %853 : tensor<16xf32>
    %1176 = stablehlo.multiply %1175, %853 : tensor<16xf32>
    %1177 = stablehlo.add %1106, %1176 : tensor<16xf32>
    %1178 = stablehlo.convert %1132 : (tensor<f64>) -> tensor<f32>
    %1179 = stablehlo.broadcast_in_dim %1178, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1180 = stablehlo.multiply %1179, %855 : tensor<16xf32>
    %1181 = stablehlo.multiply %1180, %855 : tensor<16xf32>
    %1182 = stablehlo.add %1109, %1181 : tensor<16xf32>
    %1183 = stablehlo.convert %1132 : (tensor<f64>) -> tensor<f32>
    %1184 = stablehlo.broadcast_in_dim %1183, dims = [] : (tensor<f32>) -> tensor<64x16xf32>
    %1185 = stablehlo.multiply %1184, %857 : tensor<64x16xf32>
    %1186 = stablehlo.multiply %1185, %857 : tensor<64x16xf32>
    %1187 = stablehlo.add %1112, %1186 : tensor<64x16xf32>
    %1188 = stablehlo.convert %1132 : (tensor<f64>) -> tensor<f32>
    %1189 = stablehlo.broadcast_in_dim %1188, dims = [] : (tensor<f32>) -> tensor<64xf32>
    %1190 = stablehlo.multiply %1189, %859 : tensor<64xf32>
    %1191 = stablehlo.multiply %1190, %859 : tensor<64xf32>
    %1192 = stablehlo.add %1115, %1191 : tensor<64xf32>
    %1193 = stablehlo.convert %1132 : (tensor<f64>) -> tensor<f32>
    %1194 = stablehlo.broadcast_in_dim %1193, dims = [] : (tensor<f32>) -> tensor<16x64xf32>
    %1195 = stablehlo.multiply %1194, %861 : tensor<16x64xf32>
    %1196 = stablehlo.multiply %1195, %861 : tensor<16x64xf32>
    %1197 = stablehlo.add %1118, %1196 : tensor<16x64xf32>
    %1198 = stablehlo.convert %1132 : (tensor<f64>) -> tensor<f32>
    %1199 = stablehlo.broadcast_in_dim %1198, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1200 = stablehlo.multiply %1199, %863 : tensor<16xf32>
    %1201 = stablehlo.multiply %1200, %863 : tensor<16xf32>
    %1202 = stablehlo.add %1121, %1201 : tensor<16xf32>
    %1203 = stablehlo.convert %1132 : (tensor<f64>) -> tensor<f32>
    %1204 = stablehlo.broadcast_in_dim %1203, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1205 = stablehlo.multiply %1204, %865 : tensor<16xf32>
    %1206 = stablehlo.multiply %1205, %865 : tensor<16xf32>
    %1207 = stablehlo.add %1124, %1206 : tensor<16xf32>
    %1208 = stablehlo.convert %1132 : (tensor<f64>) -> tensor<f32>
    %1209 = stablehlo.broadcast_in_dim %1208, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1210 = stablehlo.multiply %1209, %867 : tensor<16xf32>
    %1211 = stablehlo.multiply %1210, %867 : tensor<16xf32>
    %1212 = stablehlo.add %1127, %1211 : tensor<16xf32>
    %1213 = stablehlo.convert %1132 : (tensor<f64>) -> tensor<f32>
    %1214 = stablehlo.broadcast_in_dim %1213, dims = [] : (tensor<f32>) -> tensor<32x16xf32>
    %1215 = stablehlo.multiply %1214, %869 : tensor<32x16xf32>
    %1216 = stablehlo.multiply %1215, %869 : tensor<32x16xf32>
    %1217 = stablehlo.add %1130, %1216 : tensor<32x16xf32>
    %1218 = stablehlo.sqrt %1137 : tensor<32x16xf32>
    %1219 = stablehlo.sqrt %1142 : tensor<8x16xf32>
    %1220 = stablehlo.sqrt %1147 : tensor<16xf32>
    %1221 = stablehlo.sqrt %1152 : tensor<16xf32>
    %1222 = stablehlo.sqrt %1157 : tensor<48x16xf32>
    %1223 = stablehlo.sqrt %1162 : tensor<48xf32>
    %1224 = stablehlo.sqrt %1167 : tensor<16x16xf32>
    %1225 = stablehlo.sqrt %1172 : tensor<16xf32>
    %1226 = stablehlo.sqrt %1177 : tensor<16xf32>
    %1227 = stablehlo.sqrt %1182 : tensor<16xf32>
    %1228 = stablehlo.sqrt %1187 : tensor<64x16xf32>
    %1229 = stablehlo.sqrt %1192 : tensor<64xf32>
    %1230 = stablehlo.sqrt %1197 : tensor<16x64xf32>
    %1231 = stablehlo.sqrt %1202 : tensor<16xf32>
    %1232 = stablehlo.sqrt %1207 : tensor<16xf32>
    %1233 = stablehlo.sqrt %1212 : tensor<16xf32>
    %1234 = stablehlo.sqrt %1217 : tensor<32x16xf32>
    %1235 = stablehlo.slice %arg53 [7:8] : (tensor<10xf64>) -> tensor<1xf64>
    %1236 = stablehlo.reshape %1235 : (tensor<1xf64>) -> tensor<f64>
    %1237 = stablehlo.convert %1236 : (tensor<f64>) -> tensor<f32>
    %1238 = stablehlo.broadcast_in_dim %1237, dims = [] : (tensor<f32>) -> tensor<32x16xf32>
    %1239 = stablehlo.divide %1218, %1238 : tensor<32x16xf32>
    %1240 = stablehlo.convert %1236 : (tensor<f64>) -> tensor<f32>
    %1241 = stablehlo.broadcast_in_dim %1240, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %1242 = stablehlo.divide %1219, %1241 : tensor<8x16xf32>
    %1243 = stablehlo.convert %1236 : (tensor<f64>) -> tensor<f32>
    %1244 = stablehlo.broadcast_in_dim %1243, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1245 = stablehlo.divide %1220, %1244 : tensor<16xf32>
    %1246 = stablehlo.convert %1236 : (tensor<f64>) -> tensor<f32>
    %1247 = stablehlo.broadcast_in_dim %1246, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1248 = stablehlo.divide %1221, %1247 : tensor<16xf32>
    %1249 = stablehlo.convert %1236 : (tensor<f64>) -> tensor<f32>
    %1250 = stablehlo.broadcast_in_dim %1249, dims = [] : (tensor<f32>) -> tensor<48x16xf32>
    %1251 = stablehlo.divide %1222, %1250 : tensor<48x16xf32>
    %1252 = stablehlo.convert %1236 : (tensor<f64>) -> tensor<f32>
    %1253 = stablehlo.broadcast_in_dim %1252, dims = [] : (tensor<f32>) -> tensor<48xf32>
    %1254 = stablehlo.divide %1223, %1253 : tensor<48xf32>
    %1255 = stablehlo.convert %1236 : (tensor<f64>) -> tensor<f32>
    %1256 = stablehlo.broadcast_in_dim %1255, dims = [] : (tensor<f32>) -> tensor<16x16xf32>
    %1257 = stablehlo.divide %1224, %1256 : tensor<16x16xf32>
    %1258 = stablehlo.convert %1236 : (tensor<f64>) -> tensor<f32>
    %1259 = stablehlo.broadcast_in_dim %1258, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1260 = stablehlo.divide %1225, %1259 : tensor<16xf32>
    %1261 = stablehlo.convert %1236 : (tensor<f64>) -> tensor<f32>
    %1262 = stablehlo.broadcast_in_dim %1261, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1263 = stablehlo.divide %1226, %1262 : tensor<16xf32>
    %1264 = stablehlo.convert %1236 : (tensor<f64>) -> tensor<f32>
    %1265 = stablehlo.broadcast_in_dim %1264, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1266 = stablehlo.divide %1227, %1265 : tensor<16xf32>
    %1267 = stablehlo.convert %1236 : (tensor<f64>) -> tensor<f32>
    %1268 = stablehlo.broadcast_in_dim %1267, dims = [] : (tensor<f32>) -> tensor<64x16xf32>
    %1269 = stablehlo.divide %1228, %1268 : tensor<64x16xf32>
    %1270 = stablehlo.convert %1236 : (tensor<f64>) -> tensor<f32>
    %1271 = stablehlo.broadcast_in_dim %1270, dims = [] : (tensor<f32>) -> tensor<64xf32>
    %1272 = stablehlo.divide %1229, %1271 : tensor<64xf32>
    %1273 = stablehlo.convert %1236 : (tensor<f64>) -> tensor<f32>
    %1274 = stablehlo.broadcast_in_dim %1273, dims = [] : (tensor<f32>) -> tensor<16x64xf32>
    %1275 = stablehlo.divide %1230, %1274 : tensor<16x64xf32>
    %1276 = stablehlo.convert %1236 : (tensor<f64>) -> tensor<f32>
    %1277 = stablehlo.broadcast_in_dim %1276, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1278 = stablehlo.divide %1231, %1277 : tensor<16xf32>
    %1279 = stablehlo.convert %1236 : (tensor<f64>) -> tensor<f32>
    %1280 = stablehlo.broadcast_in_dim %1279, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1281 = stablehlo.divide %1232, %1280 : tensor<16xf32>
    %1282 = stablehlo.convert %1236 : (tensor<f64>) -> tensor<f32>
    %1283 = stablehlo.broadcast_in_dim %1282, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1284 = stablehlo.divide %1233, %1283 : tensor<16xf32>
    %1285 = stablehlo.convert %1236 : (tensor<f64>) -> tensor<f32>
    %1286 = stablehlo.broadcast_in_dim %1285, dims = [] : (tensor<f32>) -> tensor<32x16xf32>
    %1287 = stablehlo.divide %1234, %1286 : tensor<32x16xf32>
    %1288 = stablehlo.slice %arg53 [8:9] : (tensor<10xf64>) -> tensor<1xf64>
    %1289 = stablehlo.reshape %1288 : (tensor<1xf64>) -> tensor<f64>
    %1290 = stablehlo.convert %1289 : (tensor<f64>) -> tensor<f32>
    %1291 = stablehlo.broadcast_in_dim %1290, dims = [] : (tensor<f32>) -> tensor<32x16xf32>
    %1292 = stablehlo.add %1239, %1291 : tensor<32x16xf32>
    %1293 = stablehlo.convert %1289 : (tensor<f64>) -> tensor<f32>
    %1294 = stablehlo.broadcast_in_dim %1293, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %1295 = stablehlo.add %1242, %1294 : tensor<8x16xf32>
    %1296 = stablehlo.convert %1289 : (tensor<f64>) -> tensor<f32>
    %1297 = stablehlo.broadcast_in_dim %1296, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1298 = stablehlo.add %1245, %1297 : tensor<16xf32>
    %1299 = stablehlo.convert %1289 : (tensor<f64>) -> tensor<f32>
    %1300 = stablehlo.broadcast_in_dim %1299, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1301 = stablehlo.add %1248, %1300 : tensor<16xf32>
    %1302 = stablehlo.convert %1289 : (tensor<f64>) -> tensor<f32>
    %1303 = stablehlo.broadcast_in_dim %1302, dims = [] : (tensor<f32>) -> tensor<48x16xf32>
    %1304 = stablehlo.add %1251, %1303 : tensor<48x16xf32>
    %1305 = stablehlo.convert %1289 : (tensor<f64>) -> tensor<f32>
    %1306 = stablehlo.broadcast_in_dim %1305, dims = [] : (tensor<f32>) -> tensor<48xf32>
    %1307 = stablehlo.add %1254, %1306 : tensor<48xf32>
    %1308 = stablehlo.convert %1289 : (tensor<f64>) -> tensor<f32>
    %1309 = stablehlo.broadcast_in_dim %1308, dims = [] : (tensor<f32>) -> tensor<16x16xf32>
    %1310 = stablehlo.add %1257, %1309 : tensor<16x16xf32>
    %1311 = stablehlo.convert %1289 : (tensor<f64>) -> tensor<f32>
    %1312 = stablehlo.broadcast_in_dim %1311, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1313 = stablehlo.add %1260, %1312 : tensor<16xf32>
    %1314 = stablehlo.convert %1289 : (tensor<f64>) -> tensor<f32>
    %1315 = stablehlo.broadcast_in_dim %1314, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1316 = stablehlo.add %1263, %1315 : tensor<16xf32>
    %1317 = stablehlo.convert %1289 : (tensor<f64>) -> tensor<f32>
    %1318 = stablehlo.broadcast_in_dim %1317, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1319 = stablehlo.add %1266, %1318 : tensor<16xf32>
    %1320 = stablehlo.convert %1289 : (tensor<f64>) -> tensor<f32>
    %1321 = stablehlo.broadcast_in_dim %1320, dims = [] : (tensor<f32>) -> tensor<64x16xf32>
    %1322 = stablehlo.add %1269, %1321 : tensor<64x16xf32>
    %1323 = stablehlo.convert %1289 : (tensor<f64>) -> tensor<f32>
    %1324 = stablehlo.broadcast_in_dim %1323, dims = [] : (tensor<f32>) -> tensor<64xf32>
    %1325 = stablehlo.add %1272, %1324 : tensor<64xf32>
    %1326 = stablehlo.convert %1289 : (tensor<f64>) -> tensor<f32>
    %1327 = stablehlo.broadcast_in_dim %1326, dims = [] : (tensor<f32>) -> tensor<16x64xf32>
    %1328 = stablehlo.add %1275, %1327 : tensor<16x64xf32>
    %1329 = stablehlo.convert %1289 : (tensor<f64>) -> tensor<f32>
    %1330 = stablehlo.broadcast_in_dim %1329, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1331 = stablehlo.add %1278, %1330 : tensor<16xf32>
    %1332 = stablehlo.convert %1289 : (tensor<f64>) -> tensor<f32>
    %1333 = stablehlo.broadcast_in_dim %1332, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1334 = stablehlo.add %1281, %1333 : tensor<16xf32>
    %1335 = stablehlo.convert %1289 : (tensor<f64>) -> tensor<f32>
    %1336 = stablehlo.broadcast_in_dim %1335, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1337 = stablehlo.add %1284, %1336 : tensor<16xf32>
    %1338 = stablehlo.convert %1289 : (tensor<f64>) -> tensor<f32>
    %1339 = stablehlo.broadcast_in_dim %1338, dims = [] : (tensor<f32>) -> tensor<32x16xf32>
    %1340 = stablehlo.add %1287, %1339 : tensor<32x16xf32>
    %1341 = stablehlo.slice %arg53 [9:10] : (tensor<10xf64>) -> tensor<1xf64>
    %1342 = stablehlo.reshape %1341 : (tensor<1xf64>) -> tensor<f64>
    %1343 = stablehlo.convert %1342 : (tensor<f64>) -> tensor<f32>
    %1344 = stablehlo.broadcast_in_dim %1343, dims = [] : (tensor<f32>) -> tensor<32x16xf32>
    %1345 = stablehlo.multiply %1344, %933 : tensor<32x16xf32>
    %1346 = stablehlo.divide %1345, %1292 : tensor<32x16xf32>
    %1347 = stablehlo.add %874, %1346 : tensor<32x16xf32>
    %1348 = stablehlo.convert %1342 : (tensor<f64>) -> tensor<f32>
    %1349 = stablehlo.broadcast_in_dim %1348, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %1350 = stablehlo.multiply %1349, %942 : tensor<8x16xf32>
    %1351 = stablehlo.divide %1350, %1295 : tensor<8x16xf32>
    %1352 = stablehlo.add %877, %1351 : tensor<8x16xf32>
    %1353 = stablehlo.convert %1342 : (tensor<f64>) -> tensor<f32>
    %1354 = stablehlo.broadcast_in_dim %1353, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1355 = stablehlo.multiply %1354, %951 : tensor<16xf32>
    %1356 = stablehlo.divide %1355, %1298 : tensor<16xf32>
    %1357 = stablehlo.add %880, %1356 : tensor<16xf32>
    %1358 = stablehlo.convert %1342 : (tensor<f64>) -> tensor<f32>
    %1359 = stablehlo.broadcast_in_dim %1358, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1360 = stablehlo.multiply %1359, %960 : tensor<16xf32>
    %1361 = stablehlo.divide %1360, %1301 : tensor<16xf32>
    %1362 = stablehlo.add %883, %1361 : tensor<16xf32>
    %1363 = stablehlo.convert %1342 : (tensor<f64>) -> tensor<f32>
    %1364 = stablehlo.broadcast_in_dim %1363, dims = [] : (tensor<f32>) -> tensor<48x16xf32>
    %1365 = stablehlo.multiply %1364, %969 : tensor<48x16xf32>
    %1366 = stablehlo.divide %1365, %1304 : tensor<48x16xf32>
    %1367 = stablehlo.add %886, %1366 : tensor<48x16xf32>
    %1368 = stablehlo.convert %1342 : (tensor<f64>) -> tensor<f32>
    %1369 = stablehlo.broadcast_in_dim %1368, dims = [] : (tensor<f32>) -> tensor<48xf32>
    %1370 = stablehlo.multiply %1369, %978 : tensor<48xf32>
    %1371 = stablehlo.divide %1370, %1307 : tensor<48xf32>
    %1372 = stablehlo.add %889, %1371 : tensor<48xf32>
    %1373 = stablehlo.convert %1342 : (tensor<f64>) -> tensor<f32>
    %1374 = stablehlo.broadcast_in_dim %1373, dims = [] : (tensor<f32>) -> tensor<16x16xf32>
    %1375 = stablehlo.multiply %1374, %987 : tensor<16x16xf32>
    %1376 = stablehlo.divide %1375, %1310 : tensor<16x16xf32>
    %1377 = stablehlo.add %892, %1376 : tensor<16x16xf32>
    %1378 = stablehlo.convert %1342 : (tensor<f64>) -> tensor<f32>
    %1379 = stablehlo.broadcast_in_dim %1378, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1380 = stablehlo.multiply %1379, %996 : tensor<16xf32>
    %1381 = stablehlo.divide %1380, %1313 : tensor<16xf32>
    %1382 = stablehlo.add %895, %1381 : tensor<16xf32>
    %1383 = stablehlo.convert %1342 : (tensor<f64>) -> tensor<f32>
    %1384 = stablehlo.broadcast_in_dim %1383, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1385 = stablehlo.multiply %1384, %1005 : tensor<16xf32>
    %1386 = stablehlo.divide %1385, %1316 : tensor<16xf32>
    %1387 = stablehlo.add %898, %1386 : tensor<16xf32>
    %1388 = stablehlo.convert %1342 : (tensor<f64>) -> tensor<f32>
    %1389 = stablehlo.broadcast_in_dim %1388, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1390 = stablehlo.multiply %1389, %1014 : tensor<16xf32>
    %1391 = stablehlo.divide %1390, %1319 : tensor<16xf32>
    %1392 = stablehlo.add %901, %1391 : tensor<16xf32>
    %1393 = stablehlo.convert %1342 : (tensor<f64>) -> tensor<f32>
    %1394 = stablehlo.broadcast_in_dim %1393, dims = [] : (tensor<f32>) -> tensor<64x16xf32>
    %1395 = stablehlo.multiply %1394, %1023 : tensor<64x16xf32>
    %1396 = stablehlo.divide %1395, %1322 : tensor<64x16xf32>
    %1397 = stablehlo.add %904, %1396 : tensor<64x16xf32>
    %1398 = stablehlo.convert %1342 : (tensor<f64>) -> tensor<f32>
    %1399 = stablehlo.broadcast_in_dim %1398, dims = [] : (tensor<f32>) -> tensor<64xf32>
    %1400 = stablehlo.multiply %1399, %1032 : tensor<64xf32>
    %1401 = stablehlo.divide %1400, %1325 : tensor<64xf32>
    %1402 = stablehlo.add %907, %1401 : tensor<64xf32>
    %1403 = stablehlo.convert %1342 : (tensor<f64>) -> tensor<f32>
    %1404 = stablehlo.broadcast_in_dim %1403, dims = [] : (tensor<f32>) -> tensor<16x64xf32>
    %1405 = stablehlo.multiply %1404, %1041 : tensor<16x64xf32>
    %1406 = stablehlo.divide %1405, %1328 : tensor<16x64xf32>
    %1407 = stablehlo.add %910, %1406 : tensor<16x64xf32>
    %1408 = stablehlo.convert %1342 : (tensor<f64>) -> tensor<f32>
    %1409 = stablehlo.broadcast_in_dim %1408, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1410 = stablehlo.multiply %1409, %1050 : tensor<16xf32>
    %1411 = stablehlo.divide %1410, %1331 : tensor<16xf32>
    %1412 = stablehlo.add %913, %1411 : tensor<16xf32>
    %1413 = stablehlo.convert %1342 : (tensor<f64>) -> tensor<f32>
    %1414 = stablehlo.broadcast_in_dim %1413, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1415 = stablehlo.multiply %1414, %1059 : tensor<16xf32>
    %1416 = stablehlo.divide %1415, %1334 : tensor<16xf32>
    %1417 = stablehlo.add %916, %1416 : tensor<16xf32>
    %1418 = stablehlo.convert %1342 : (tensor<f64>) -> tensor<f32>
    %1419 = stablehlo.broadcast_in_dim %1418, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1420 = stablehlo.multiply %1419, %1068 : tensor<16xf32>
    %1421 = stablehlo.divide %1420, %1337 : tensor<16xf32>
    %1422 = stablehlo.add %919, %1421 : tensor<16xf32>
    %1423 = stablehlo.convert %1342 : (tensor<f64>) -> tensor<f32>
    %1424 = stablehlo.broadcast_in_dim %1423, dims = [] : (tensor<f32>) -> tensor<32x16xf32>
    %1425 = stablehlo.multiply %1424, %1077 : tensor<32x16xf32>
    %1426 = stablehlo.divide %1425, %1340 : tensor<32x16xf32>
    %1427 = stablehlo.add %922, %1426 : tensor<32x16xf32>
    return %338, %933, %942, %951, %960, %969, %978, %987, %996, %1005, %1014, %1023, %1032, %1041, %1050, %1059, %1068, %1077, %1137, %1142, %1147, %1152, %1157, %1162, %1167, %1172, %1177, %1182, %1187, %1192, %1197, %1202, %1207, %1212, %1217, %1347, %1352, %1357, %1362, %1367, %1372, %1377, %1382, %1387, %1392, %1397, %1402, %1407, %1412, %1417, %1422, %1427 : tensor<f32>, tensor<32x16xf32>, tensor<8x16xf32>, tensor<16xf32>, tensor<16xf32>, tensor<48x16xf32>, tensor<48xf32>, tensor<16x16xf32>, tensor<16xf32>, tensor<16xf32>, tensor<16xf32>, tensor<64x16xf32>, tensor<64xf32>, tensor<16x64xf32>, tensor<16xf32>, tensor<16xf32>, tensor<16xf32>, tensor<32x16xf32>, tensor<32x16xf32>, tensor<8x16xf32>, tensor<16xf32>, tensor<16xf32>, tensor<48x16xf32>, tensor<48xf32>, tensor<16x16xf32>, tensor<16xf32>, tensor<16xf32>, tensor<16xf32>, tensor<64x16xf32>, tensor<64xf32>, tensor<16x64xf32>, tensor<16xf32>, tensor<16xf32>, tensor<16xf32>, tensor<32x16xf32>, tensor<32x16xf32>, tensor<8x16xf32>, tensor<16xf32>, tensor<16xf32>, tensor<48x16xf32>, tensor<48xf32>, tensor<16x16xf32>, tensor<16xf32>, tensor<16xf32>, tensor<16xf32>, tensor<64x16xf32>, tensor<64xf32>, tensor<16x64xf32>, tensor<16xf32>, tensor<16xf32>, tensor<16xf32>, tensor<32x16xf32>
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

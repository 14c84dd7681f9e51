// torch 2.13.0, jax 0.10.2, transformers 5.23.0
module @jit_spmd attributes {mhlo.num_partitions = 8 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<32x16xf32> {mhlo.sharding = "{devices=[8,1]<=[8]}", tf.aliasing_output = 1 : i32},
    %arg1: tensor<8x16xf32> {mhlo.sharding = "{devices=[1,8]<=[8]}", tf.aliasing_output = 2 : i32},
    %arg2: tensor<16xf32> {mhlo.sharding = "{devices=[8]<=[8]}", tf.aliasing_output = 3 : i32},
    %arg3: tensor<16xf32> {mhlo.sharding = "{devices=[8]<=[8]}", tf.aliasing_output = 4 : i32},
    %arg4: tensor<32x16xf32> {mhlo.sharding = "{devices=[8,1]<=[8]}", tf.aliasing_output = 17 : i32},
    %arg5: tensor<8x8xi64> {mhlo.sharding = "{devices=[8,1]<=[8]}"},
    %arg6: tensor<16xf32> {mhlo.sharding = "{devices=[8]<=[8]}", tf.aliasing_output = 8 : i32},
    %arg7: tensor<16xf32> {mhlo.sharding = "{devices=[8]<=[8]}", tf.aliasing_output = 9 : i32},
    %arg8: tensor<48x16xf32> {mhlo.sharding = "{devices=[8,1]<=[8]}", tf.aliasing_output = 5 : i32},
    %arg9: tensor<48xf32> {mhlo.sharding = "{devices=[8]<=[8]}", tf.aliasing_output = 6 : i32},
    %arg10: tensor<16x16xf32> {mhlo.sharding = "{devices=[8,1]<=[8]}", tf.aliasing_output = 7 : i32},
    %arg11: tensor<16xf32> {mhlo.sharding = "{devices=[8]<=[8]}", tf.aliasing_output = 10 : i32},
    %arg12: tensor<16xf32> {mhlo.sharding = "{devices=[8]<=[8]}", tf.aliasing_output = 14 : i32},
    %arg13: tensor<16xf32> {mhlo.sharding = "{devices=[8]<=[8]}", tf.aliasing_output = 15 : i32},
    %arg14: tensor<64x16xf32> {mhlo.sharding = "{devices=[8,1]<=[8]}", tf.aliasing_output = 11 : i32},
    %arg15: tensor<64xf32> {mhlo.sharding = "{devices=[8]<=[8]}", tf.aliasing_output = 12 : i32},
    %arg16: tensor<16x64xf32> {mhlo.sharding = "{devices=[1,8]<=[8]}", tf.aliasing_output = 13 : i32},
    %arg17: tensor<16xf32> {mhlo.sharding = "{devices=[8]<=[8]}", tf.aliasing_output = 16 : i32},
    %arg18: tensor<8x8xi64> {mhlo.sharding = "{devices=[8,1]<=[8]}"},
    %arg19: tensor<32x16xf32> {mhlo.sharding = "{devices=[8,1]<=[8]}", tf.aliasing_output = 18 : i32},
    %arg20: tensor<8x16xf32> {mhlo.sharding = "{devices=[1,8]<=[8]}", tf.aliasing_output = 19 : i32},
    %arg21: tensor<16xf32> {mhlo.sharding = "{devices=[8]<=[8]}", tf.aliasing_output = 20 : i32},
    %arg22: tensor<16xf32> {mhlo.sharding = "{devices=[8]<=[8]}", tf.aliasing_output = 21 : i32},
    %arg23: tensor<48x16xf32> {mhlo.sharding = "{devices=[8,1]<=[8]}", tf.aliasing_output = 22 : i32},
    %arg24: tensor<48xf32> {mhlo.sharding = "{devices=[8]<=[8]}", tf.aliasing_output = 23 : i32},
    %arg25: tensor<16x16xf32> {mhlo.sharding = "{devices=[8,1]<=[8]}", tf.aliasing_output = 24 : i32},
    %arg26: tensor<16xf32> {mhlo.sharding = "{devices=[8]<=[8]}", tf.aliasing_output = 25 : i32},
    %arg27: tensor<16xf32> {mhlo.sharding = "{devices=[8]<=[8]}", tf.aliasing_output = 26 : i32},
    %arg28: tensor<16xf32> {mhlo.sharding = "{devices=[8]<=[8]}", tf.aliasing_output = 27 : i32},
    %arg29: tensor<64x16xf32> {mhlo.sharding = "{devices=[8,1]<=[8]}", tf.aliasing_output = 28 : i32},
    %arg30: tensor<64xf32> {mhlo.sharding = "{devices=[8]<=[8]}", tf.aliasing_output = 29 : i32},
    %arg31: tensor<16x64xf32> {mhlo.sharding = "{devices=[1,8]<=[8]}", tf.aliasing_output = 30 : i32},
    %arg32: tensor<16xf32> {mhlo.sharding = "{devices=[8]<=[8]}", tf.aliasing_output = 31 : i32},
    %arg33: tensor<16xf32> {mhlo.sharding = "{devices=[8]<=[8]}", tf.aliasing_output = 32 : i32},
    %arg34: tensor<16xf32> {mhlo.sharding = "{devices=[8]<=[8]}", tf.aliasing_output = 33 : i32},
    %arg35: tensor<32x16xf32> {mhlo.sharding = "{devices=[8,1]<=[8]}", tf.aliasing_output = 34 : i32},
    %arg36: tensor<32x16xf32> {mhlo.sharding = "{devices=[8,1]<=[8]}", tf.aliasing_output = 35 : i32},
    %arg37: tensor<8x16xf32> {mhlo.sharding = "{devices=[1,8]<=[8]}", tf.aliasing_output = 36 : i32},
    %arg38: tensor<16xf32> {mhlo.sharding = "{devices=[8]<=[8]}", tf.aliasing_output = 37 : i32},
    %arg39: tensor<16xf32> {mhlo.sharding = "{devices=[8]<=[8]}", tf.aliasing_output = 38 : i32},
    %arg40: tensor<48x16xf32> {mhlo.sharding = "{devices=[8,1]<=[8]}", tf.aliasing_output = 39 : i32},
    %arg41: tensor<48xf32> {mhlo.sharding = "{devices=[8]<=[8]}", tf.aliasing_output = 40 : i32},
    %arg42: tensor<16x16xf32> {mhlo.sharding = "{devices=[8,1]<=[8]}", tf.aliasing_output = 41 : i32},
    %arg43: tensor<16xf32> {mhlo.sharding = "{devices=[8]<=[8]}", tf.aliasing_output = 42 : i32},
    %arg44: tensor<16xf32> {mhlo.sharding = "{devices=[8]<=[8]}", tf.aliasing_output = 43 : i32},
    %arg45: tensor<16xf32> {mhlo.sharding = "{devices=[8]<=[8]}", tf.aliasing_output = 44 : i32},
    %arg46: tensor<64x16xf32> {mhlo.sharding = "{devices=[8,1]<=[8]}", tf.aliasing_output = 45 : i32},
    %arg47: tensor<64xf32> {mhlo.sharding = "{devices=[8]<=[8]}", tf.aliasing_output = 46 : i32},
    %arg48: tensor<16x64xf32> {mhlo.sharding = "{devices=[1,8]<=[8]}", tf.aliasing_output = 47 : i32},
    %arg49: tensor<16xf32> {mhlo.sharding = "{devices=[8]<=[8]}", tf.aliasing_output = 48 : i32},
    %arg50: tensor<16xf32> {mhlo.sharding = "{devices=[8]<=[8]}", tf.aliasing_output = 49 : i32},
    %arg51: tensor<16xf32> {mhlo.sharding = "{devices=[8]<=[8]}", tf.aliasing_output = 50 : i32},
    %arg52: tensor<32x16xf32> {mhlo.sharding = "{devices=[8,1]<=[8]}", tf.aliasing_output = 51 : i32},
    %arg53: tensor<10xf64>,
    %arg54: tensor<2xi64>) -> (
    tensor<f32> {jax.result_info = "result[0]"},
    tensor<32x16xf32> {jax.result_info = "result[1]", mhlo.sharding = "{devices=[8,1]<=[8]}"},
    tensor<8x16xf32> {jax.result_info = "result[2]", mhlo.sharding = "{devices=[1,8]<=[8]}"},
    tensor<16xf32> {jax.result_info = "result[3]", mhlo.sharding = "{devices=[8]<=[8]}"},
    tensor<16xf32> {jax.result_info = "result[4]", mhlo.sharding = "{devices=[8]<=[8]}"},
    tensor<48x16xf32> {jax.result_info = "result[5]", mhlo.sharding = "{devices=[8,1]<=[8]}"},
    tensor<48xf32> {jax.result_info = "result[6]", mhlo.sharding = "{devices=[8]<=[8]}"},
    tensor<16x16xf32> {jax.result_info = "result[7]", mhlo.sharding = "{devices=[8,1]<=[8]}"},
    tensor<16xf32> {jax.result_info = "result[8]", mhlo.sharding = "{devices=[8]<=[8]}"},
    tensor<16xf32> {jax.result_info = "result[9]", mhlo.sharding = "{devices=[8]<=[8]}"},
    tensor<16xf32> {jax.result_info = "result[10]", mhlo.sharding = "{devices=[8]<=[8]}"},
    tensor<64x16xf32> {jax.result_info = "result[11]", mhlo.sharding = "{devices=[8,1]<=[8]}"},
    tensor<64xf32> {jax.result_info = "result[12]", mhlo.sharding = "{devices=[8]<=[8]}"},
    tensor<16x64xf32> {jax.result_info = "result[13]", mhlo.sharding = "{devices=[1,8]<=[8]}"},
    tensor<16xf32> {jax.result_info = "result[14]", mhlo.sharding = "{devices=[8]<=[8]}"},
    tensor<16xf32> {jax.result_info = "result[15]", mhlo.sharding = "{devices=[8]<=[8]}"},
    tensor<16xf32> {jax.result_info = "result[16]", mhlo.sharding = "{devices=[8]<=[8]}"},
    tensor<32x16xf32> {jax.result_info = "result[17]", mhlo.sharding = "{devices=[8,1]<=[8]}"},
    tensor<32x16xf32> {jax.result_info = "result[18]", mhlo.sharding = "{devices=[8,1]<=[8]}"},
    tensor<8x16xf32> {jax.result_info = "result[19]", mhlo.sharding = "{devices=[1,8]<=[8]}"},
    tensor<16xf32> {jax.result_info = "result[20]", mhlo.sharding = "{devices=[8]<=[8]}"},
    tensor<16xf32> {jax.result_info = "result[21]", mhlo.sharding = "{devices=[8]<=[8]}"},
    tensor<48x16xf32> {jax.result_info = "result[22]", mhlo.sharding = "{devices=[8,1]<=[8]}"},
    tensor<48xf32> {jax.result_info = "result[23]", mhlo.sharding = "{devices=[8]<=[8]}"},
    tensor<16x16xf32> {jax.result_info = "result[24]", mhlo.sharding = "{devices=[8,1]<=[8]}"},
    tensor<16xf32> {jax.result_info = "result[25]", mhlo.sharding = "{devices=[8]<=[8]}"},
    tensor<16xf32> {jax.result_info = "result[26]", mhlo.sharding = "{devices=[8]<=[8]}"},
    tensor<16xf32> {jax.result_info = "result[27]", mhlo.sharding = "{devices=[8]<=[8]}"},
    tensor<64x16xf32> {jax.result_info = "result[28]", mhlo.sharding = "{devices=[8,1]<=[8]}"},
    tensor<64xf32> {jax.result_info = "result[29]", mhlo.sharding = "{devices=[8]<=[8]}"},
    tensor<16x64xf32> {jax.result_info = "result[30]", mhlo.sharding = "{devices=[1,8]<=[8]}"},
    tensor<16xf32> {jax.result_info = "result[31]", mhlo.sharding = "{devices=[8]<=[8]}"},
    tensor<16xf32> {jax.result_info = "result[32]", mhlo.sharding = "{devices=[8]<=[8]}"},
    tensor<16xf32> {jax.result_info = "result[33]", mhlo.sharding = "{devices=[8]<=[8]}"},
    tensor<32x16xf32> {jax.result_info = "result[34]", mhlo.sharding = "{devices=[8,1]<=[8]}"},
    tensor<32x16xf32> {jax.result_info = "result[35]", mhlo.sharding = "{devices=[8,1]<=[8]}"},
    tensor<8x16xf32> {jax.result_info = "result[36]", mhlo.sharding = "{devices=[1,8]<=[8]}"},
    tensor<16xf32> {jax.result_info = "result[37]", mhlo.sharding = "{devices=[8]<=[8]}"},
    tensor<16xf32> {jax.result_info = "result[38]", mhlo.sharding = "{devices=[8]<=[8]}"},
    tensor<48x16xf32> {jax.result_info = "result[39]", mhlo.sharding = "{devices=[8,1]<=[8]}"},
    tensor<48xf32> {jax.result_info = "result[40]", mhlo.sharding = "{devices=[8]<=[8]}"},
    tensor<16x16xf32> {jax.result_info = "result[41]", mhlo.sharding = "{devices=[8,1]<=[8]}"},
    tensor<16xf32> {jax.result_info = "result[42]", mhlo.sharding = "{devices=[8]<=[8]}"},
    tensor<16xf32> {jax.result_info = "result[43]", mhlo.sharding = "{devices=[8]<=[8]}"},
    tensor<16xf32> {jax.result_info = "result[44]", mhlo.sharding = "{devices=[8]<=[8]}"},
    tensor<64x16xf32> {jax.result_info = "result[45]", mhlo.sharding = "{devices=[8,1]<=[8]}"},
    tensor<64xf32> {jax.result_info = "result[46]", mhlo.sharding = "{devices=[8]<=[8]}"},
    tensor<16x64xf32> {jax.result_info = "result[47]", mhlo.sharding = "{devices=[1,8]<=[8]}"},
    tensor<16xf32> {jax.result_info = "result[48]", mhlo.sharding = "{devices=[8]<=[8]}"},
    tensor<16xf32> {jax.result_info = "result[49]", mhlo.sharding = "{devices=[8]<=[8]}"},
    tensor<16xf32> {jax.result_info = "result[50]", mhlo.sharding = "{devices=[8]<=[8]}"},
    tensor<32x16xf32> {jax.result_info = "result[51]", mhlo.sharding = "{devices=[8,1]<=[8]}"}) {
    %0 = stablehlo.iota dim = 0 : tensor<8xi64>
    %c = stablehlo.constant dense<1> : tensor<i64>
    %1 = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<i64>) -> tensor<8xi64>
    %2 = stablehlo.multiply %0, %1 : tensor<8xi64>
    %c_0 = stablehlo.constant dense<0> : tensor<i64>
    %3 = stablehlo.broadcast_in_dim %c_0, dims = [] : (tensor<i64>) -> tensor<8xi64>
    %4 = stablehlo.add %3, %2 : tensor<8xi64>
    %5 = stablehlo.reshape %arg0 : (tensor<32x16xf32>) -> tensor<8x4x16xf32>
    %6 = stablehlo.reshape %5 : (tensor<8x4x16xf32>) -> tensor<8x64xf32>
    %7 = stablehlo.custom_call @Sharding(%6) {backend_config = "", mhlo.sharding = "{devices=[8,1]<=[8]}"} : (tensor<8x64xf32>) -> tensor<8x64xf32>
    %8 = stablehlo.transpose %arg1, dims = [1, 0] : (tensor<8x16xf32>) -> tensor<16x8xf32>
    %9 = stablehlo.reshape %8 : (tensor<16x8xf32>) -> tensor<8x2x8xf32>
    %10 = stablehlo.reshape %9 : (tensor<8x2x8xf32>) -> tensor<8x16xf32>
    %11 = stablehlo.custom_call @Sharding(%10) {backend_config = "", mhlo.sharding = "{devices=[8,1]<=[8]}"} : (tensor<8x16xf32>) -> tensor<8x16xf32>
    %12 = stablehlo.reshape %arg2 : (tensor<16xf32>) -> tensor<16x1xf32>
    %13 = stablehlo.reshape %12 : (tensor<16x1xf32>) -> tensor<8x2x1xf32>
    %14 = stablehlo.reshape %13 : (tensor<8x2x1xf32>) -> tensor<8x2xf32>
    %15 = stablehlo.custom_call @Sharding(%14) {backend_config = "", mhlo.sharding = "{devices=[8,1]<=[8]}"} : (tensor<8x2xf32>) -> tensor<8x2xf32>
    %16 = stablehlo.reshape %arg3 : (tensor<16xf32>) -> tensor<16x1xf32>
    %17 = stablehlo.reshape %16 : (tensor<16x1xf32>) -> tensor<8x2x1xf32>
    %18 = stablehlo.reshape %17 : (tensor<8x2x1xf32>) -> tensor<8x2xf32>
    %19 = stablehlo.custom_call @Sharding(%18) {backend_config = "", mhlo.sharding = "{devices=[8,1]<=[8]}"} : (tensor<8x2xf32>) -> tensor<8x2xf32>
    %20 = stablehlo.reshape %arg4 : (tensor<32x16xf32>) -> tensor<8x4x16xf32>
    %21 = stablehlo.reshape %20 : (tensor<8x4x16xf32>) -> tensor<8x64xf32>
    %22 = stablehlo.custom_call @Sharding(%21) {backend_config = "", mhlo.sharding = "{devices=[8,1]<=[8]}"} : (tensor<8x64xf32>) -> tensor<8x64xf32>
    %23 = stablehlo.concatenate %7, %11, %15, %19, %22, dim = 1 : (tensor<8x64xf32>, tensor<8x16xf32>, tensor<8x2xf32>, tensor<8x2xf32>, tensor<8x64xf32>) -> tensor<8x148xf32>
    %24 = stablehlo.custom_call @Sharding(%23) {backend_config = "", mhlo.sharding = "{devices=[8,1]<=[8]}"} : (tensor<8x148xf32>) -> tensor<8x148xf32>
    %25 = stablehlo.custom_call @Sharding(%24) {backend_config = "", mhlo.sharding = "{replicated}"} : (tensor<8x148xf32>) -> tensor<8x148xf32>
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
    %67 = stablehlo.custom_call @Sharding(%66#0) {backend_config = "", mhlo.sharding = "{devices=[8]<=[8]}"} : (tensor<16xf32>) -> tensor<16xf32>
    %68 = stablehlo.custom_call @Sharding(%66#1) {backend_config = "", mhlo.sharding = "{devices=[8]<=[8]}"} : (tensor<16xf32>) -> tensor<16xf32>
    %69 = stablehlo.custom_call @Sharding(%66#2) {backend_config = "", mhlo.sharding = "{devices=[8,1]<=[8]}"} : (tensor<48x16xf32>) -> tensor<48x16xf32>
    %70 = stablehlo.custom_call @Sharding(%66#3) {backend_config = "", mhlo.sharding = "{devices=[8]<=[8]}"} : (tensor<48xf32>) -> tensor<48xf32>
    %71 = stablehlo.custom_call @Sharding(%66#4) {backend_config = "", mhlo.sharding = "{devices=[8,1]<=[8]}"} : (tensor<16x16xf32>) -> tensor<16x16xf32>
    %72 = stablehlo.custom_call @Sharding(%66#5) {backend_config = "", mhlo.sharding = "{devices=[8]<=[8]}"} : (tensor<16xf32>) -> tensor<16xf32>
    %73 = stablehlo.custom_call @Sharding(%66#6) {backend_config = "", mhlo.sharding = "{devices=[8]<=[8]}"} : (tensor<16xf32>) -> tensor<16xf32>
    %74 = stablehlo.custom_call @Sharding(%66#7) {backend_config = "", mhlo.sharding = "{devices=[8]<=[8]}"} : (tensor<16xf32>) -> tensor<16xf32>
    %75 = stablehlo.custom_call @Sharding(%66#8) {backend_config = "", mhlo.sharding = "{devices=[8,1]<=[8]}"} : (tensor<64x16xf32>) -> tensor<64x16xf32>
    %76 = stablehlo.custom_call @Sharding(%66#9) {backend_config = "", mhlo.sharding = "{devices=[8]<=[8]}"} : (tensor<64xf32>) -> tensor<64xf32>
    %77 = stablehlo.custom_call @Sharding(%66#10) {backend_config = "", mhlo.sharding = "{devices=[1,8]<=[8]}"} : (tensor<16x64xf32>) -> tensor<16x64xf32>
    %78 = stablehlo.custom_call @Sharding(%66#11) {backend_config = "", mhlo.sharding = "{devices=[8]<=[8]}"} : (tensor<16xf32>) -> tensor<16xf32>
    %79 = stablehlo.reshape %67 : (tensor<16xf32>) -> tensor<16x1xf32>
    %80 = stablehlo.reshape %79 : (tensor<16x1xf32>) -> tensor<8x2x1xf32>
    %81 = stablehlo.reshape %80 : (tensor<8x2x1xf32>) -> tensor<8x2xf32>
    %82 = stablehlo.custom_call @Sharding(%81) {backend_config = "", mhlo.sharding = "{devices=[8,1]<=[8]}"} : (tensor<8x2xf32>) -> tensor<8x2xf32>
    %83 = stablehlo.reshape %68 : (tensor<16xf32>) -> tensor<16x1xf32>
    %84 = stablehlo.reshape %83 : (tensor<16x1xf32>) -> tensor<8x2x1xf32>
    %85 = stablehlo.reshape %84 : (tensor<8x2x1xf32>) -> tensor<8x2xf32>
    %86 = stablehlo.custom_call @Sharding(%85) {backend_config = "", mhlo.sharding = "{devices=[8,1]<=[8]}"} : (tensor<8x2xf32>) -> tensor<8x2xf32>
    %87 = stablehlo.reshape %69 : (tensor<48x16xf32>) -> tensor<8x6x16xf32>
    %88 = stablehlo.reshape %87 : (tensor<8x6x16xf32>) -> tensor<8x96xf32>
    %89 = stablehlo.custom_call @Sharding(%88) {backend_config = "", mhlo.sharding = "{devices=[8,1]<=[8]}"} : (tensor<8x96xf32>) -> tensor<8x96xf32>
    %90 = stablehlo.reshape %70 : (tensor<48xf32>) -> tensor<48x1xf32>
    %91 = stablehlo.reshape %90 : (tensor<48x1xf32>) -> tensor<8x6x1xf32>
    %92 = stablehlo.reshape %91 : (tensor<8x6x1xf32>) -> tensor<8x6xf32>
    %93 = stablehlo.custom_call @Sharding(%92) {backend_config = "", mhlo.sharding = "{devices=[8,1]<=[8]}"} : (tensor<8x6xf32>) -> tensor<8x6xf32>
    %94 = stablehlo.reshape %71 : (tensor<16x16xf32>) -> tensor<8x2x16xf32>
    %95 = stablehlo.reshape %94 : (tensor<8x2x16xf32>) -> tensor<8x32xf32>
    %96 = stablehlo.custom_call @Sharding(%95) {backend_config = "", mhlo.sharding = "{devices=[8,1]<=[8]}"} : (tensor<8x32xf32>) -> tensor<8x32xf32>
    %97 = stablehlo.reshape %72 : (tensor<16xf32>) -> tensor<16x1xf32>
    %98 = stablehlo.reshape %97 : (tensor<16x1xf32>) -> tensor<8x2x1xf32>
    %99 = stablehlo.reshape %98 : (tensor<8x2x1xf32>) -> tensor<8x2xf32>
    %100 = stablehlo.custom_call @Sharding(%99) {backend_config = "", mhlo.sharding = "{devices=[8,1]<=[8]}"} : (tensor<8x2xf32>) -> tensor<8x2xf32>
    %101 = stablehlo.reshape %73 : (tensor<16xf32>) -> tensor<16x1xf32>
    %102 = stablehlo.reshape %101 : (tensor<16x1xf32>) -> tensor<8x2x1xf32>
    %103 = stablehlo.reshape %102 : (tensor<8x2x1xf32>) -> tensor<8x2xf32>
    %104 = stablehlo.custom_call @Sharding(%103) {backend_config = "", mhlo.sharding = "{devices=[8,1]<=[8]}"} : (tensor<8x2xf32>) -> tensor<8x2xf32>
    %105 = stablehlo.reshape %74 : (tensor<16xf32>) -> tensor<16x1xf32>
    %106 = stablehlo.reshape %105 : (tensor<16x1xf32>) -> tensor<8x2x1xf32>
    %107 = stablehlo.reshape %106 : (tensor<8x2x1xf32>) -> tensor<8x2xf32>
    %108 = stablehlo.custom_call @Sharding(%107) {backend_config = "", mhlo.sharding = "{devices=[8,1]<=[8]}"} : (tensor<8x2xf32>) -> tensor<8x2xf32>
    %109 = stablehlo.reshape %75 : (tensor<64x16xf32>) -> tensor<8x8x16xf32>
    %110 = stablehlo.reshape %109 : (tensor<8x8x16xf32>) -> tensor<8x128xf32>
    %111 = stablehlo.custom_call @Sharding(%110) {backend_config = "", mhlo.sharding = "{devices=[8,1]<=[8]}"} : (tensor<8x128xf32>) -> tensor<8x128xf32>
    %112 = stablehlo.reshape %76 : (tensor<64xf32>) -> tensor<64x1xf32>
    %113 = stablehlo.reshape %112 : (tensor<64x1xf32>) -> tensor<8x8x1xf32>
    %114 = stablehlo.reshape %113 : (tensor<8x8x1xf32>) -> tensor<8x8xf32>
    %115 = stablehlo.custom_call @Sharding(%114) {backend_config = "", mhlo.sharding = "{devices=[8,1]<=[8]}"} : (tensor<8x8xf32>) -> tensor<8x8xf32>
    %116 = stablehlo.transpose %77, dims = [1, 0] : (tensor<16x64xf32>) -> tensor<64x16xf32>
    %117 = stablehlo.reshape %116 : (tensor<64x16xf32>) -> tensor<8x8x16xf32>
    %118 = stablehlo.reshape %117 : (tensor<8x8x16xf32>) -> tensor<8x128xf32>
    %119 = stablehlo.custom_call @Sharding(%118) {backend_config = "", mhlo.sharding = "{devices=[8,1]<=[8]}"} : (tensor<8x128xf32>) -> tensor<8x128xf32>
    %120 = stablehlo.reshape %78 : (tensor<16xf32>) -> tensor<16x1xf32>
    %121 = stablehlo.reshape %120 : (tensor<16x1xf32>) -> tensor<8x2x1xf32>
    %122 = stablehlo.reshape %121 : (tensor<8x2x1xf32>) -> tensor<8x2xf32>
    %123 = stablehlo.custom_call @Sharding(%122) {backend_config = "", mhlo.sharding = "{devices=[8,1]<=[8]}"} : (tensor<8x2xf32>) -> tensor<8x2xf32>
    %124 = stablehlo.concatenate %82, %86, %89, %93, %96, %100, %104, %108, %111, %115, %119, %123, dim = 1 : (tensor<8x2xf32>, tensor<8x2xf32>, tensor<8x96xf32>, tensor<8x6xf32>, tensor<8x32xf32>, tensor<8x2xf32>, tensor<8x2xf32>, tensor<8x2xf32>, tensor<8x128xf32>, tensor<8x8xf32>, tensor<8x128xf32>, tensor<8x2xf32>) -> tensor<8x410xf32>
    %125 = stablehlo.custom_call @Sharding(%124) {backend_config = "", mhlo.sharding = "{devices=[8,1]<=[8]}"} : (tensor<8x410xf32>) -> tensor<8x410xf32>
    %126 = stablehlo.custom_call @Sharding(%125) {backend_config = "", mhlo.sharding = "{replicated}"} : (tensor<8x410xf32>) -> tensor<8x410xf32>
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
    %282 = stablehlo.custom_call @Sharding(%281) {backend_config = "", mhlo.sharding = "{devices=[8,1,1]<=[8]}"} : (tensor<8x8x16xf32>) -> tensor<8x8x16xf32>
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
    %310 = stablehlo.custom_call @Sharding(%309) {backend_config = "", mhlo.sharding = "{devices=[8,1,1]<=[8]}"} : (tensor<8x8x32xf32>) -> tensor<8x8x32xf32>
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
    %365:6 = stablehlo.optimization_barrier %arg0, %arg1, %arg2, %arg3, %arg4, %364 : tensor<32x16xf32>, tensor<8x16xf32>, tensor<16xf32>, tensor<16xf32>, tensor<32x16xf32>, tensor<8x8x32xf32>
    %366 = stablehlo.custom_call @Sharding(%365#0) {backend_config = "", mhlo.sharding = "{devices=[8,1]<=[8]}"} : (tensor<32x16xf32>) -> tensor<32x16xf32>
    %367 = stablehlo.custom_call @Sharding(%365#1) {backend_config = "", mhlo.sharding = "{devices=[1,8]<=[8]}"} : (tensor<8x16xf32>) -> tensor<8x16xf32>
    %368 = stablehlo.custom_call @Sharding(%365#2) {backend_config = "", mhlo.sharding = "{devices=[8]<=[8]}"} : (tensor<16xf32>) -> tensor<16xf32>
    %369 = stablehlo.custom_call @Sharding(%365#3) {backend_config = "", mhlo.sharding = "{devices=[8]<=[8]}"} : (tensor<16xf32>) -> tensor<16xf32>
    %370 = stablehlo.custom_call @Sharding(%365#4) {backend_config = "", mhlo.sharding = "{devices=[8,1]<=[8]}"} : (tensor<32x16xf32>) -> tensor<32x16xf32>
    %371 = stablehlo.reshape %366 : (tensor<32x16xf32>) -> tensor<8x4x16xf32>
    %372 = stablehlo.reshape %371 : (tensor<8x4x16xf32>) -> tensor<8x64xf32>
    %373 = stablehlo.custom_call @Sharding(%372) {backend_config = "", mhlo.sharding = "{devices=[8,1]<=[8]}"} : (tensor<8x64xf32>) -> tensor<8x64xf32>
    %374 = stablehlo.transpose %367, dims = [1, 0] : (tensor<8x16xf32>) -> tensor<16x8xf32>
    %375 = stablehlo.reshape %374 : (tensor<16x8xf32>) -> tensor<8x2x8xf32>
    %376 = stablehlo.reshape %375 : (tensor<8x2x8xf32>) -> tensor<8x16xf32>
    %377 = stablehlo.custom_call @Sharding(%376) {backend_config = "", mhlo.sharding = "{devices=[8,1]<=[8]}"} : (tensor<8x16xf32>) -> tensor<8x16xf32>
    %378 = stablehlo.reshape %368 : (tensor<16xf32>) -> tensor<16x1xf32>
    %379 = stablehlo.reshape %378 : (tensor<16x1xf32>) -> tensor<8x2x1xf32>
    %380 = stablehlo.reshape %379 : (tensor<8x2x1xf32>) -> tensor<8x2xf32>
    %381 = stablehlo.custom_call @Sharding(%380) {backend_config = "", mhlo.sharding = "{devices=[8,1]<=[8]}"} : (tensor<8x2xf32>) -> tensor<8x2xf32>
    %382 = stablehlo.reshape %369 : (tensor<16xf32>) -> tensor<16x1xf32>
    %383 = stablehlo.reshape %382 : (tensor<16x1xf32>) -> tensor<8x2x1xf32>
    %384 = stablehlo.reshape %383 : (tensor<8x2x1xf32>) -> tensor<8x2xf32>
    %385 = stablehlo.custom_call @Sharding(%384) {backend_config = "", mhlo.sharding = "{devices=[8,1]<=[8]}"} : (tensor<8x2xf32>) -> tensor<8x2xf32>
    %386 = stablehlo.reshape %370 : (tensor<32x16xf32>) -> tensor<8x4x16xf32>
    %387 = stablehlo.reshape %386 : (tensor<8x4x16xf32>) -> tensor<8x64xf32>
    %388 = stablehlo.custom_call @Sharding(%387) {backend_config = "", mhlo.sharding = "{devices=[8,1]<=[8]}"} : (tensor<8x64xf32>) -> tensor<8x64xf32>
    %389 = stablehlo.concatenate %373, %377, %381, %385, %388, dim = 1 : (tensor<8x64xf32>, tensor<8x16xf32>, tensor<8x2xf32>, tensor<8x2xf32>, tensor<8x64xf32>) -> tensor<8x148xf32>
    %390 = stablehlo.custom_call @Sharding(%389) {backend_config = "", mhlo.sharding = "{devices=[8,1]<=[8]}"} : (tensor<8x148xf32>) -> tensor<8x148xf32>
    %391 = stablehlo.custom_call @Sharding(%390) {backend_config = "", mhlo.sharding = "{replicated}"} : (tensor<8x148xf32>) -> tensor<8x148xf32>
    %392 = stablehlo.slice %391 [0:8, 0:64] : (tensor<8x148xf32>) -> tensor<8x64xf32>
    %393 = stablehlo.reshape %392 : (tensor<8x64xf32>) -> tensor<32x16xf32>
    %394 = stablehlo.slice %391 [0:8, 64:80] : (tensor<8x148xf32>) -> tensor<8x16xf32>
    %395 = stablehlo.reshape %394 : (tensor<8x16xf32>) -> tensor<16x8xf32>
    %396 = stablehlo.transpose %395, dims = [1, 0] : (tensor<16x8xf32>) -> tensor<8x16xf32>
    %397 = stablehlo.slice %391 [0:8, 80:82] : (tensor<8x148xf32>) -> tensor<8x2xf32>
    %398 = stablehlo.reshape %397 : (tensor<8x2xf32>) -> tensor<16xf32>
    %399 = stablehlo.slice %391 [0:8, 82:84] : (tensor<8x148xf32>) -> tensor<8x2xf32>
    %400 = stablehlo.reshape %399 : (tensor<8x2xf32>) -> tensor<16xf32>
    %401 = stablehlo.slice %391 [0:8, 84:148] : (tensor<8x148xf32>) -> tensor<8x64xf32>
    %402 = stablehlo.reshape %401 : (tensor<8x64xf32>) -> tensor<32x16xf32>
    %403 = stablehlo.reshape %304 : (tensor<8x8x16xf32>) -> tensor<64x16xf32>
    %404 = stablehlo.reshape %365#5 : (tensor<8x8x32xf32>) -> tensor<64x32xf32>
    %405 = stablehlo.dot_general %404, %402, contracting_dims = [1] x [0], precision = [HIGHEST, HIGHEST] : (tensor<64x32xf32>, tensor<32x16xf32>) -> tensor<64x16xf32>
    %406 = stablehlo.transpose %404, dims = [1, 0] : (tensor<64x32xf32>) -> tensor<32x64xf32>
    %407 = stablehlo.dot_general %406, %403, contracting_dims = [1] x [0], precision = [HIGHEST, HIGHEST] : (tensor<32x64xf32>, tensor<64x16xf32>) -> tensor<32x16xf32>
    %408 = stablehlo.reshape %405 : (tensor<64x16xf32>) -> tensor<8x8x16xf32>
    %409 = stablehlo.custom_call @Sharding(%407) {backend_config = "", mhlo.sharding = "{replicated}"} : (tensor<32x16xf32>) -> tensor<32x16xf32>
    %410 = stablehlo.custom_call @Sharding(%409) {backend_config = "", mhlo.sharding = "{devices=[8,1]<=[8]}"} : (tensor<32x16xf32>) -> tensor<32x16xf32>
    %411 = stablehlo.optimization_barrier %410 : tensor<32x16xf32>
    %412 = stablehlo.broadcast_in_dim %286, dims = [0, 1, 2] : (tensor<8x8x1xf32>) -> tensor<8x8x16xf32>
    %413 = stablehlo.subtract %282, %412 : tensor<8x8x16xf32>
    %414 = stablehlo.broadcast_in_dim %296, dims = [0, 1, 2] : (tensor<8x8x1xf32>) -> tensor<8x8x16xf32>
    %415 = stablehlo.multiply %413, %414 : tensor<8x8x16xf32>
    %416 = stablehlo.broadcast_in_dim %398, dims = [2] : (tensor<16xf32>) -> tensor<1x1x16xf32>
    %417 = stablehlo.broadcast_in_dim %416, dims = [0, 1, 2] : (tensor<1x1x16xf32>) -> tensor<8x8x16xf32>
    %418 = stablehlo.multiply %408, %417 : tensor<8x8x16xf32>
    %cst_50 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %419 = stablehlo.reduce(%418 init: %cst_50) applies stablehlo.add across dimensions = [2] : (tensor<8x8x16xf32>, tensor<f32>) -> tensor<8x8xf32>
    %420 = stablehlo.broadcast_in_dim %419, dims = [0, 1] : (tensor<8x8xf32>) -> tensor<8x8x1xf32>
    %cst_51 = stablehlo.constant dense<1.600000e+01> : tensor<f32>
    %421 = stablehlo.broadcast_in_dim %cst_51, dims = [] : (tensor<f32>) -> tensor<8x8x1xf32>
    %422 = stablehlo.divide %420, %421 : tensor<8x8x1xf32>
    %423 = stablehlo.multiply %418, %415 : tensor<8x8x16xf32>
    %cst_52 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %424 = stablehlo.reduce(%423 init: %cst_52) applies stablehlo.add across dimensions = [2] : (tensor<8x8x16xf32>, tensor<f32>) -> tensor<8x8xf32>
    %425 = stablehlo.broadcast_in_dim %424, dims = [0, 1] : (tensor<8x8xf32>) -> tensor<8x8x1xf32>
    %cst_53 = stablehlo.constant dense<1.600000e+01> : tensor<f32>
    %426 = stablehlo.broadcast_in_dim %cst_53, dims = [] : (tensor<f32>) -> tensor<8x8x1xf32>
    %427 = stablehlo.divide %425, %426 : tensor<8x8x1xf32>
    %428 = stablehlo.broadcast_in_dim %422, dims = [0, 1, 2] : (tensor<8x8x1xf32>) -> tensor<8x8x16xf32>
    %429 = stablehlo.subtract %418, %428 : tensor<8x8x16xf32>
    %430 = stablehlo.broadcast_in_dim %427, dims = [0, 1, 2] : (tensor<8x8x1xf32>) -> tensor<8x8x16xf32>
    %431 = stablehlo.multiply %415, %430 : tensor<8x8x16xf32>
    %432 = stablehlo.subtract %429, %431 : tensor<8x8x16xf32>
    %433 = stablehlo.broadcast_in_dim %296, dims = [0, 1, 2] : (tensor<8x8x1xf32>) -> tensor<8x8x16xf32>
    %434 = stablehlo.multiply %433, %432 : tensor<8x8x16xf32>
    %435 = stablehlo.multiply %408, %415 : tensor<8x8x16xf32>
    %cst_54 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %436 = stablehlo.reduce(%435 init: %cst_54) applies stablehlo.add across dimensions = [0, 1] : (tensor<8x8x16xf32>, tensor<f32>) -> tensor<16xf32>
    %cst_55 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %437 = stablehlo.reduce(%408 init: %cst_55) applies stablehlo.add across dimensions = [0, 1] : (tensor<8x8x16xf32>, tensor<f32>) -> tensor<16xf32>
    %438 = stablehlo.custom_call @Sharding(%436) {backend_config = "", mhlo.sharding = "{replicated}"} : (tensor<16xf32>) -> tensor<16xf32>
    %439 = stablehlo.custom_call @Sharding(%438) {backend_config = "", mhlo.sharding = "{devices=[8]<=[8]}"} : (tensor<16xf32>) -> tensor<16xf32>
    %440 = stablehlo.optimization_barrier %439 : tensor<16xf32>
    %441 = stablehlo.custom_call @Sharding(%437) {backend_config = "", mhlo.sharding = "{replicated}"} : (tensor<16xf32>) -> tensor<16xf32>
    %442 = stablehlo.custom_call @Sharding(%441) {backend_config = "", mhlo.sharding = "{devices=[8]<=[8]}"} : (tensor<16xf32>) -> tensor<16xf32>
    %443 = stablehlo.optimization_barrier %442 : tensor<16xf32>
    %444:13 = stablehlo.optimization_barrier %arg6, %arg7, %arg8, %arg9, %arg10, %arg11, %arg12, %arg13, %arg14, %arg15, %arg16, %arg17, %434 : tensor<16xf32>, tensor<16xf32>, tensor<48x16xf32>, tensor<48xf32>, tensor<16x16xf32>, tensor<16xf32>, tensor<16xf32>, tensor<16xf32>, tensor<64x16xf32>, tensor<64xf32>, tensor<16x64xf32>, tensor<16xf32>, tensor<8x8x16xf32>
    %445 = stablehlo.custom_call @Sharding(%444#0) {backend_config = "", mhlo.sharding = "{devices=[8]<=[8]}"} : (tensor<16xf32>) -> tensor<16xf32>
    %446 = stablehlo.custom_call @Sharding(%444#1) {backend_config = "", mhlo.sharding = "{devices=[8]<=[8]}"} : (tensor<16xf32>) -> tensor<16xf32>
    %447 = stablehlo.custom_call @Sharding(%444#2) {backend_config = "", mhlo.sharding = "{devices=[8,1]<=[8]}"} : (tensor<48x16xf32>) -> tensor<48x16xf32>
    %448 = stablehlo.custom_call @Sharding(%444#3) {backend_config = "", mhlo.sharding = "{devices=[8]<=[8]}"} : (tensor<48xf32>) -> tensor<48xf32>
    %449 = stablehlo.custom_call @Sharding(%444#4) {backend_config = "", mhlo.sharding = "{devices=[8,1]<=[8]}"} : (tensor<16x16xf32>) -> tensor<16x16xf32>
    %450 = stablehlo.custom_call @Sharding(%444#5) {backend_config = "", mhlo.sharding = "{devices=[8]<=[8]}"} : (tensor<16xf32>) -> tensor<16xf32>
    %451 = stablehlo.custom_call @Sharding(%444#6) {backend_config = "", mhlo.sharding = "{devices=[8]<=[8]}"} : (tensor<16xf32>) -> tensor<16xf32>
    %452 = stablehlo.custom_call @Sharding(%444#7) {backend_config = "", mhlo.sharding = "{devices=[8]<=[8]}"} : (tensor<16xf32>) -> tensor<16xf32>
    %453 = stablehlo.custom_call @Sharding(%444#8) {backend_config = "", mhlo.sharding = "{devices=[8,1]<=[8]}"} : (tensor<64x16xf32>) -> tensor<64x16xf32>
    %454 = stablehlo.custom_call @Sharding(%444#9) {backend_config = "", mhlo.sharding = "{devices=[8]<=[8]}"} : (tensor<64xf32>) -> tensor<64xf32>
    %455 = stablehlo.custom_call @Sharding(%444#10) {backend_config = "", mhlo.sharding = "{devices=[1,8]<=[8]}"} : (tensor<16x64xf32>) -> tensor<16x64xf32>
    %456 = stablehlo.custom_call @Sharding(%444#11) {backend_config = "", mhlo.sharding = "{devices=[8]<=[8]}"} : (tensor<16xf32>) -> tensor<16xf32>
    %457 = stablehlo.reshape %445 : (tensor<16xf32>) -> tensor<16x1xf32>
    %458 = stablehlo.reshape %457 : (tensor<16x1xf32>) -> tensor<8x2x1xf32>
    %459 = stablehlo.reshape %458 : (tensor<8x2x1xf32>) -> tensor<8x2xf32>
    %460 = stablehlo.custom_call @Sharding(%459) {backend_config = "", mhlo.sharding = "{devices=[8,1]<=[8]}"} : (tensor<8x2xf32>) -> tensor<8x2xf32>
    %461 = stablehlo.reshape %446 : (tensor<16xf32>) -> tensor<16x1xf32>
    %462 = stablehlo.reshape %461 : (tensor<16x1xf32>) -> tensor<8x2x1xf32>
    %463 = stablehlo.reshape %462 : (tensor<8x2x1xf32>) -> tensor<8x2xf32>
    %464 = stablehlo.custom_call @Sharding(%463) {backend_config = "", mhlo.sharding = "{devices=[8,1]<=[8]}"} : (tensor<8x2xf32>) -> tensor<8x2xf32>
    %465 = stablehlo.reshape %447 : (tensor<48x16xf32>) -> tensor<8x6x16xf32>
    %466 = stablehlo.reshape %465 : (tensor<8x6x16xf32>) -> tensor<8x96xf32>
    %467 = stablehlo.custom_call @Sharding(%466) {backend_config = "", mhlo.sharding = "{devices=[8,1]<=[8]}"} : (tensor<8x96xf32>) -> tensor<8x96xf32>
    %468 = stablehlo.reshape %448 : (tensor<48xf32>) -> tensor<48x1xf32>
    %469 = stablehlo.reshape %468 : (tensor<48x1xf32>) -> tensor<8x6x1xf32>
    %470 = stablehlo.reshape %469 : (tensor<8x6x1xf32>) -> tensor<8x6xf32>
    %471 = stablehlo.custom_call @Sharding(%470) {backend_config = "", mhlo.sharding = "{devices=[8,1]<=[8]}"} : (tensor<8x6xf32>) -> tensor<8x6xf32>
    %472 = stablehlo.reshape %449 : (tensor<16x16xf32>) -> tensor<8x2x16xf32>
    %473 = stablehlo.reshape %472 : (tensor<8x2x16xf32>) -> tensor<8x32xf32>
    %474 = stablehlo.custom_call @Sharding(%473) {backend_config = "", mhlo.sharding = "{devices=[8,1]<=[8]}"} : (tensor<8x32xf32>) -> tensor<8x32xf32>
    %475 = stablehlo.reshape %450 : (tensor<16xf32>) -> tensor<16x1xf32>
    %476 = stablehlo.reshape %475 : (tensor<16x1xf32>) -> tensor<8x2x1xf32>
    %477 = stablehlo.reshape %476 : (tensor<8x2x1xf32>) -> tensor<8x2xf32>
    %478 = stablehlo.custom_call @Sharding(%477) {backend_config = "", mhlo.sharding = "{devices=[8,1]<=[8]}"} : (tensor<8x2xf32>) -> tensor<8x2xf32>
    %479 = stablehlo.reshape %451 : (tensor<16xf32>) -> tensor<16x1xf32>
    %480 = stablehlo.reshape %479 : (tensor<16x1xf32>) -> tensor<8x2x1xf32>
    %481 = stablehlo.reshape %480 : (tensor<8x2x1xf32>) -> tensor<8x2xf32>
    %482 = stablehlo.custom_call @Sharding(%481) {backend_config = "", mhlo.sharding = "{devices=[8,1]<=[8]}"} : (tensor<8x2xf32>) -> tensor<8x2xf32>
    %483 = stablehlo.reshape %452 : (tensor<16xf32>) -> tensor<16x1xf32>
    %484 = stablehlo.reshape %483 : (tensor<16x1xf32>) -> tensor<8x2x1xf32>
    %485 = stablehlo.reshape %484 : (tensor<8x2x1xf32>) -> tensor<8x2xf32>
    %486 = stablehlo.custom_call @Sharding(%485) {backend_config = "", mhlo.sharding = "{devices=[8,1]<=[8]}"} : (tensor<8x2xf32>) -> tensor<8x2xf32>
    %487 = stablehlo.reshape %453 : (tensor<64x16xf32>) -> tensor<8x8x16xf32>
    %488 = stablehlo.reshape %487 : (tensor<8x8x16xf32>) -> tensor<8x128xf32>
    %489 = stablehlo.custom_call @Sharding(%488) {backend_config = "", mhlo.sharding = "{devices=[8,1]<=[8]}"} : (tensor<8x128xf32>) -> tensor<8x128xf32>
    %490 = stablehlo.reshape %454 : (tensor<64xf32>) -> tensor<64x1xf32>
    %491 = stablehlo.reshape %490 : (tensor<64x1xf32>) -> tensor<8x8x1xf32>
    %492 = stablehlo.reshape %491 : (tensor<8x8x1xf32>) -> tensor<8x8xf32>
    %493 = stablehlo.custom_call @Sharding(%492) {backend_config = "", mhlo.sharding = "{devices=[8,1]<=[8]}"} : (tensor<8x8xf32>) -> tensor<8x8xf32>
    %494 = stablehlo.transpose %455, dims = [1, 0] : (tensor<16x64xf32>) -> tensor<64x16xf32>
    %495 = stablehlo.reshape %494 : (tensor<64x16xf32>) -> tensor<8x8x16xf32>
    %496 = stablehlo.reshape %495 : (tensor<8x8x16xf32>) -> tensor<8x128xf32>
    %497 = stablehlo.custom_call @Sharding(%496) {backend_config = "", mhlo.sharding = "{devices=[8,1]<=[8]}"} : (tensor<8x128xf32>) -> tensor<8x128xf32>
    %498 = stablehlo.reshape %456 : (tensor<16xf32>) -> tensor<16x1xf32>
    %499 = stablehlo.reshape %498 : (tensor<16x1xf32>) -> tensor<8x2x1xf32>
    %500 = stablehlo.reshape %499 : (tensor<8x2x1xf32>) -> tensor<8x2xf32>
    %501 = stablehlo.custom_call @Sharding(%500) {backend_config = "", mhlo.sharding = "{devices=[8,1]<=[8]}"} : (tensor<8x2xf32>) -> tensor<8x2xf32>
    %502 = stablehlo.concatenate %460, %464, %467, %471, %474, %478, %482, %486, %489, %493, %497, %501, dim = 1 : (tensor<8x2xf32>, tensor<8x2xf32>, tensor<8x96xf32>, tensor<8x6xf32>, tensor<8x32xf32>, tensor<8x2xf32>, tensor<8x2xf32>, tensor<8x2xf32>, tensor<8x128xf32>, tensor<8x8xf32>, tensor<8x128xf32>, tensor<8x2xf32>) -> tensor<8x410xf32>
    %503 = stablehlo.custom_call @Sharding(%502) {backend_config = "", mhlo.sharding = "{devices=[8,1]<=[8]}"} : (tensor<8x410xf32>) -> tensor<8x410xf32>
    %504 = stablehlo.custom_call @Sharding(%503) {backend_config = "", mhlo.sharding = "{replicated}"} : (tensor<8x410xf32>) -> tensor<8x410xf32>
    %505 = stablehlo.slice %504 [0:8, 0:2] : (tensor<8x410xf32>) -> tensor<8x2xf32>
    %506 = stablehlo.reshape %505 : (tensor<8x2xf32>) -> tensor<16xf32>
    %507 = stablehlo.slice %504 [0:8, 2:4] : (tensor<8x410xf32>) -> tensor<8x2xf32>
    %508 = stablehlo.reshape %507 : (tensor<8x2xf32>) -> tensor<16xf32>
    %509 = stablehlo.slice %504 [0:8, 4:100] : (tensor<8x410xf32>) -> tensor<8x96xf32>
    %510 = stablehlo.reshape %509 : (tensor<8x96xf32>) -> tensor<48x16xf32>
    %511 = stablehlo.slice %504 [0:8, 100:106] : (tensor<8x410xf32>) -> tensor<8x6xf32>
    %512 = stablehlo.reshape %511 : (tensor<8x6xf32>) -> tensor<48xf32>
    %513 = stablehlo.slice %504 [0:8, 106:138] : (tensor<8x410xf32>) -> tensor<8x32xf32>
    %514 = stablehlo.reshape %513 : (tensor<8x32xf32>) -> tensor<16x16xf32>
    %515 = stablehlo.slice %504 [0:8, 138:140] : (tensor<8x410xf32>) -> tensor<8x2xf32>
    %516 = stablehlo.reshape %515 : (tensor<8x2xf32>) -> tensor<16xf32>
    %517 = stablehlo.slice %504 [0:8, 140:142] : (tensor<8x410xf32>) -> tensor<8x2xf32>
    %518 = stablehlo.reshape %517 : (tensor<8x2xf32>) -> tensor<16xf32>
    %519 = stablehlo.slice %504 [0:8, 142:144] : (tensor<8x410xf32>) -> tensor<8x2xf32>
    %520 = stablehlo.reshape %519 : (tensor<8x2xf32>) -> tensor<16xf32>
    %521 = stablehlo.slice %504 [0:8, 144:272] : (tensor<8x410xf32>) -> tensor<8x128xf32>
    %522 = stablehlo.reshape %521 : (tensor<8x128xf32>) -> tensor<64x16xf32>
    %523 = stablehlo.slice %504 [0:8, 272:280] : (tensor<8x410xf32>) -> tensor<8x8xf32>
    %524 = stablehlo.reshape %523 : (tensor<8x8xf32>) -> tensor<64xf32>
    %525 = stablehlo.slice %504 [0:8, 280:408] : (tensor<8x410xf32>) -> tensor<8x128xf32>
    %526 = stablehlo.reshape %525 : (tensor<8x128xf32>) -> tensor<64x16xf32>
    %527 = stablehlo.transpose %526, dims = [1, 0] : (tensor<64x16xf32>) -> tensor<16x64xf32>
    %528 = stablehlo.slice %504 [0:8, 408:410] : (tensor<8x410xf32>) -> tensor<8x2xf32>
    %529 = stablehlo.reshape %528 : (tensor<8x2xf32>) -> tensor<16xf32>
    %530 = stablehlo.reshape %272 : (tensor<8x8x64xf32>) -> tensor<64x64xf32>
    %531 = stablehlo.reshape %444#12 : (tensor<8x8x16xf32>) -> tensor<64x16xf32>
    %532 = stablehlo.dot_general %531, %527, contracting_dims = [1] x [0], precision = [HIGHEST, HIGHEST] : (tensor<64x16xf32>, tensor<16x64xf32>) -> tensor<64x64xf32>
    %533 = stablehlo.transpose %531, dims = [1, 0] : (tensor<64x16xf32>) -> tensor<16x64xf32>
    %534 = stablehlo.dot_general %533, %530, contracting_dims = [1] x [0], precision = [HIGHEST, HIGHEST] : (tensor<16x64xf32>, tensor<64x64xf32>) -> tensor<16x64xf32>
    %cst_56 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %535 = stablehlo.reduce(%531 init: %cst_56) applies stablehlo.add across dimensions = [0] : (tensor<64x16xf32>, tensor<f32>) -> tensor<16xf32>
    %536 = stablehlo.reshape %532 : (tensor<64x64xf32>) -> tensor<8x8x64xf32>
    %537 = stablehlo.custom_call @Sharding(%534) {backend_config = "", mhlo.sharding = "{replicated}"} : (tensor<16x64xf32>) -> tensor<16x64xf32>
    %538 = stablehlo.custom_call @Sharding(%537) {backend_config = "", mhlo.sharding = "{devices=[1,8]<=[8]}"} : (tensor<16x64xf32>) -> tensor<16x64xf32>
    %539 = stablehlo.optimization_barrier %538 : tensor<16x64xf32>
    %540 = stablehlo.custom_call @Sharding(%535) {backend_config = "", mhlo.sharding = "{replicated}"} : (tensor<16xf32>) -> tensor<16xf32>
    %541 = stablehlo.custom_call @Sharding(%540) {backend_config = "", mhlo.sharding = "{devices=[8]<=[8]}"} : (tensor<16xf32>) -> tensor<16xf32>
    %542 = stablehlo.optimization_barrier %541 : tensor<16xf32>
    %543 = stablehlo.multiply %259, %259 : tensor<8x8x64xf32>
    %544 = stablehlo.multiply %543, %259 : tensor<8x8x64xf32>
    %cst_57 = stablehlo.constant dense<4.471500e-02> : tensor<f32>
    %545 = stablehlo.broadcast_in_dim %cst_57, dims = [] : (tensor<f32>) -> tensor<8x8x64xf32>
    %546 = stablehlo.multiply %545, %544 : tensor<8x8x64xf32>
    %547 = stablehlo.add %259, %546 : tensor<8x8x64xf32>
    %cst_58 = stablehlo.constant dense<0.797884583> : tensor<f32>
    %548 = stablehlo.broadcast_in_dim %cst_58, dims = [] : (tensor<f32>) -> tensor<8x8x64xf32>
    %549 = stablehlo.multiply %548, %547 : tensor<8x8x64xf32>
    %550 = stablehlo.tanh %549 : tensor<8x8x64xf32>
    %cst_59 = stablehlo.constant dense<1.341450e-01> : tensor<f32>
    %551 = stablehlo.broadcast_in_dim %cst_59, dims = [] : (tensor<f32>) -> tensor<8x8x64xf32>
    %552 = stablehlo.multiply %551, %543 : tensor<8x8x64xf32>
    %cst_60 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %553 = stablehlo.broadcast_in_dim %cst_60, dims = [] : (tensor<f32>) -> tensor<8x8x64xf32>
    %554 = stablehlo.add %553, %552 : tensor<8x8x64xf32>
    %cst_61 = stablehlo.constant dense<0.797884583> : tensor<f32>
    %555 = stablehlo.broadcast_in_dim %cst_61, dims = [] : (tensor<f32>) -> tensor<8x8x64xf32>
    %556 = stablehlo.multiply %555, %554 : tensor<8x8x64xf32>
    %cst_62 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %557 = stablehlo.broadcast_in_dim %cst_62, dims = [] : (tensor<f32>) -> tensor<8x8x64xf32>
    %558 = stablehlo.add %557, %550 : tensor<8x8x64xf32>
    %cst_63 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %559 = stablehlo.broadcast_in_dim %cst_63, dims = [] : (tensor<f32>) -> tensor<8x8x64xf32>
    %560 = stablehlo.multiply %559, %558 : tensor<8x8x64xf32>
    %cst_64 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %561 = stablehlo.broadcast_in_dim %cst_64, dims = [] : (tensor<f32>) -> tensor<8x8x64xf32>
    %562 = stablehlo.multiply %561, %259 : tensor<8x8x64xf32>
    %563 = stablehlo.multiply %550, %550 : tensor<8x8x64xf32>
    %cst_65 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %564 = stablehlo.broadcast_in_dim %cst_65, dims = [] : (tensor<f32>) -> tensor<8x8x64xf32>
    %565 = stablehlo.subtract %564, %563 : tensor<8x8x64xf32>
    %566 = stablehlo.multiply %562, %565 : tensor<8x8x64xf32>
    %567 = stablehlo.multiply %566, %556 : tensor<8x8x64xf32>
    %568 = stablehlo.add %560, %567 : tensor<8x8x64xf32>
    %569 = stablehlo.multiply %536, %568 : tensor<8x8x64xf32>
    %570 = stablehlo.reshape %251 : (tensor<8x8x16xf32>) -> tensor<64x16xf32>
    %571 = stablehlo.reshape %569 : (tensor<8x8x64xf32>) -> tensor<64x64xf32>
    %572 = stablehlo.dot_general %571, %522, contracting_dims = [1] x [0], precision = [HIGHEST, HIGHEST] : (tensor<64x64xf32>, tensor<64x16xf32>) -> tensor<64x16xf32>
    %573 = stablehlo.transpose %571, dims = [1, 0] : (tensor<64x64xf32>) -> tensor<64x64xf32>
    %574 = stablehlo.dot_general %573, %570, contracting_dims = [1] x [0], precision = [HIGHEST, HIGHEST] : (tensor<64x64xf32>, tensor<64x16xf32>) -> tensor<64x16xf32>
    %cst_66 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %575 = stablehlo.reduce(%571 init: %cst_66) applies stablehlo.add across dimensions = [0] : (tensor<64x64xf32>, tensor<f32>) -> tensor<64xf32>
    %576 = stablehlo.reshape %572 : (tensor<64x16xf32>) -> tensor<8x8x16xf32>
    %577 = stablehlo.custom_call @Sharding(%574) {backend_config = "", mhlo.sharding = "{replicated}"} : (tensor<64x16xf32>) -> tensor<64x16xf32>
    %578 = stablehlo.custom_call @Sharding(%577) {backend_config = "", mhlo.sharding = "{devices=[8,1]<=[8]}"} : (tensor<64x16xf32>) -> tensor<64x16xf32>
    %579 = stablehlo.optimization_barrier %578 : tensor<64x16xf32>
    %580 = stablehlo.custom_call @Sharding(%575) {backend_config = "", mhlo.sharding = "{replicated}"} : (tensor<64xf32>) -> tensor<64xf32>
    %581 = stablehlo.custom_call @Sharding(%580) {backend_config = "", mhlo.sharding = "{devices=[8]<=[8]}"} : (tensor<64xf32>) -> tensor<64xf32>
    %582 = stablehlo.optimization_barrier %581 : tensor<64xf32>
    %583 = stablehlo.broadcast_in_dim %233, dims = [0, 1, 2] : (tensor<8x8x1xf32>) -> tensor<8x8x16xf32>
    %584 = stablehlo.subtract %229, %583 : tensor<8x8x16xf32>
    %585 = stablehlo.broadcast_in_dim %243, dims = [0, 1, 2] : (tensor<8x8x1xf32>) -> tensor<8x8x16xf32>
    %586 = stablehlo.multiply %584, %585 : tensor<8x8x16xf32>
    %587 = stablehlo.broadcast_in_dim %518, dims = [2] : (tensor<16xf32>) -> tensor<1x1x16xf32>
    %588 = stablehlo.broadcast_in_dim %587, dims = [0, 1, 2] : (tensor<1x1x16xf32>) -> tensor<8x8x16xf32>
    %589 = stablehlo.multiply %576, %588 : tensor<8x8x16xf32>
    %cst_67 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %590 = stablehlo.reduce(%589 init: %cst_67) applies stablehlo.add across dimensions = [2] : (tensor<8x8x16xf32>, tensor<f32>) -> tensor<8x8xf32>
    %591 = stablehlo.broadcast_in_dim %590, dims = [0, 1] : (tensor<8x8xf32>) -> tensor<8x8x1xf32>
    %cst_68 = stablehlo.constant dense<1.600000e+01> : tensor<f32>
    %592 = stablehlo.broadcast_in_dim %cst_68, dims = [] : (tensor<f32>) -> tensor<8x8x1xf32>
    %593 = stablehlo.divide %591, %592 : tensor<8x8x1xf32>
    %594 = stablehlo.multiply %589, %586 : tensor<8x8x16xf32>
    %cst_69 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %595 = stablehlo.reduce(%594 init: %cst_69) applies stablehlo.add across dimensions = [2] : (tensor<8x8x16xf32>, tensor<f32>) -> tensor<8x8xf32>
    %596 = stablehlo.broadcast_in_dim %595, dims = [0, 1] : (tensor<8x8xf32>) -> tensor<8x8x1xf32>
    %cst_70 = stablehlo.constant dense<1.600000e+01> : tensor<f32>
    %597 = stablehlo.broadcast_in_dim %cst_70, dims = [] : (tensor<f32>) -> tensor<8x8x1xf32>
    %598 = stablehlo.divide %596, %597 : tensor<8x8x1xf32>
    %599 = stablehlo.broadcast_in_dim %593, dims = [0, 1, 2] : (tensor<8x8x1xf32>) -> tensor<8x8x16xf32>
    %600 = stablehlo.subtract %589, %599 : tensor<8x8x16xf32>
    %601 = stablehlo.broadcast_in_dim %598, dims = [0, 1, 2] : (tensor<8x8x1xf32>) -> tensor<8x8x16xf32>
    %602 = stablehlo.multiply %586, %601 : tensor<8x8x16xf32>
    %603 = stablehlo.subtract %600, %602 : tensor<8x8x16xf32>
    %604 = stablehlo.broadcast_in_dim %243, dims = [0, 1, 2] : (tensor<8x8x1xf32>) -> tensor<8x8x16xf32>
    %605 = stablehlo.multiply %604, %603 : tensor<8x8x16xf32>
    %606 = stablehlo.multiply %576, %586 : tensor<8x8x16xf32>
    %cst_71 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %607 = stablehlo.reduce(%606 init: %cst_71) applies stablehlo.add across dimensions = [0, 1] : (tensor<8x8x16xf32>, tensor<f32>) -> tensor<16xf32>
    %cst_72 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %608 = stablehlo.reduce(%576 init: %cst_72) applies stablehlo.add across dimensions = [0, 1] : (tensor<8x8x16xf32>, tensor<f32>) -> tensor<16xf32>
    %609 = stablehlo.add %444#12, %605 : tensor<8x8x16xf32>
    %610 = stablehlo.custom_call @Sharding(%607) {backend_config = "", mhlo.sharding = "{replicated}"} : (tensor<16xf32>) -> tensor<16xf32>
    %611 = stablehlo.custom_call @Sharding(%610) {backend_config = "", mhlo.sharding = "{devices=[8]<=[8]}"} : (tensor<16xf32>) -> tensor<16xf32>
    %612 = stablehlo.optimization_barrier %611 : tensor<16xf32>
    %613 = stablehlo.custom_call @Sharding(%608) {backend_config = "", mhlo.sharding = "{replicated}"} : (tensor<16xf32>) -> tensor<16xf32>
    %614 = stablehlo.custom_call @Sharding(%613) {backend_config = "", mhlo.sharding = "{devices=[8]<=[8]}"} : (tensor<16xf32>) -> tensor<16xf32>
    %615 = stablehlo.optimization_barrier %614 : tensor<16xf32>
    %616 = stablehlo.reshape %220 : (tensor<8x8x16xf32>) -> tensor<64x16xf32>
    %617 = stablehlo.reshape %609 : (tensor<8x8x16xf32>) -> tensor<64x16xf32>
    %618 = stablehlo.dot_general %617, %514, contracting_dims = [1] x [0], precision = [HIGHEST, HIGHEST] : (tensor<64x16xf32>, tensor<16x16xf32>) -> tensor<64x16xf32>
    %619 = stablehlo.transpose %617, dims = [1, 0] : (tensor<64x16xf32>) -> tensor<16x64xf32>
    %620 = stablehlo.dot_general %619, %616, contracting_dims = [1] x [0], precision = [HIGHEST, HIGHEST] : (tensor<16x64xf32>, tensor<64x16xf32>) -> tensor<16x16xf32>
    %cst_73 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %621 = stablehlo.reduce(%617 init: %cst_73) applies stablehlo.add across dimensions = [0] : (tensor<64x16xf32>, tensor<f32>) -> tensor<16xf32>
    %622 = stablehlo.reshape %618 : (tensor<64x16xf32>) -> tensor<8x8x16xf32>
    %623 = stablehlo.custom_call @Sharding(%620) {backend_config = "", mhlo.sharding = "{replicated}"} : (tensor<16x16xf32>) -> tensor<16x16xf32>
    %624 = stablehlo.custom_call @Sharding(%623) {backend_config = "", mhlo.sharding = "{devices=[8,1]<=[8]}"} : (tensor<16x16xf32>) -> tensor<16x16xf32>
    %625 = stablehlo.optimization_barrier %624 : tensor<16x16xf32>
    %626 = stablehlo.custom_call @Sharding(%621) {backend_config = "", mhlo.sharding = "{replicated}"} : (tensor<16xf32>) -> tensor<16xf32>
    %627 = stablehlo.custom_call @Sharding(%626) {backend_config = "", mhlo.sharding = "{devices=[8]<=[8]}"} : (tensor<16xf32>) -> tensor<16xf32>
    %628 = stablehlo.optimization_barrier %627 : tensor<16xf32>
    %629 = stablehlo.reshape %622 : (tensor<8x8x16xf32>) -> tensor<8x8x2x8xf32>
    %630 = stablehlo.transpose %629, dims = [0, 2, 1, 3] : (tensor<8x8x2x8xf32>) -> tensor<8x2x8x8xf32>
    %631 = stablehlo.dot_general %185, %188, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [3], precision = [HIGHEST, HIGHEST] : (tensor<8x2x8x8xf32>, tensor<8x2x8x8xf32>) -> tensor<8x2x8x8xf32>
    %cst_74 = stablehlo.constant dense<0.353553385> : tensor<f32>
    %632 = stablehlo.broadcast_in_dim %cst_74, dims = [] : (tensor<f32>) -> tensor<8x2x8x8xf32>
    %633 = stablehlo.multiply %631, %632 : tensor<8x2x8x8xf32>
    %634 = stablehlo.iota dim = 0 : tensor<8x8xi32>
    %635 = stablehlo.iota dim = 1 : tensor<8x8xi32>
    %636 = stablehlo.compare LE, %635, %634, SIGNED : (tensor<8x8xi32>, tensor<8x8xi32>) -> tensor<8x8xi1>
    %cst_75 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %637 = call @_where(%636, %633, %cst_75) : (tensor<8x8xi1>, tensor<8x2x8x8xf32>, tensor<f32>) -> tensor<8x2x8x8xf32>
    %cst_76 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %638 = stablehlo.reduce(%637 init: %cst_76) applies stablehlo.maximum across dimensions = [3] : (tensor<8x2x8x8xf32>, tensor<f32>) -> tensor<8x2x8xf32>
    %639 = stablehlo.broadcast_in_dim %638, dims = [0, 1, 2] : (tensor<8x2x8xf32>) -> tensor<8x2x8x1xf32>
    %640 = stablehlo.broadcast_in_dim %639, dims = [0, 1, 2, 3] : (tensor<8x2x8x1xf32>) -> tensor<8x2x8x8xf32>
    %641 = stablehlo.subtract %637, %640 : tensor<8x2x8x8xf32>
    %642 = stablehlo.exponential %641 : tensor<8x2x8x8xf32>
    %cst_77 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %643 = stablehlo.reduce(%642 init: %cst_77) applies stablehlo.add across dimensions = [3] : (tensor<8x2x8x8xf32>, tensor<f32>) -> tensor<8x2x8xf32>
    %644 = stablehlo.broadcast_in_dim %643, dims = [0, 1, 2] : (tensor<8x2x8xf32>) -> tensor<8x2x8x1xf32>
    %645 = stablehlo.log %644 : tensor<8x2x8x1xf32>
    %646 = stablehlo.add %639, %645 : tensor<8x2x8x1xf32>
    %647 = stablehlo.reshape %646 : (tensor<8x2x8x1xf32>) -> tensor<8x2x8xf32>
    %648 = stablehlo.broadcast_in_dim %644, dims = [0, 1, 2, 3] : (tensor<8x2x8x1xf32>) -> tensor<8x2x8x8xf32>
    %649 = stablehlo.divide %642, %648 : tensor<8x2x8x8xf32>
    %650 = stablehlo.dot_general %649, %630, batching_dims = [0, 1] x [0, 1], contracting_dims = [2] x [2], precision = [HIGHEST, HIGHEST] : (tensor<8x2x8x8xf32>, tensor<8x2x8x8xf32>) -> tensor<8x2x8x8xf32>
    %651 = stablehlo.dot_general %630, %191, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [3], precision = [HIGHEST, HIGHEST] : (tensor<8x2x8x8xf32>, tensor<8x2x8x8xf32>) -> tensor<8x2x8x8xf32>
    %652 = stablehlo.multiply %630, %215 : tensor<8x2x8x8xf32>
    %cst_78 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %653 = stablehlo.reduce(%652 init: %cst_78) applies stablehlo.add across dimensions = [3] : (tensor<8x2x8x8xf32>, tensor<f32>) -> tensor<8x2x8xf32>
    %654 = stablehlo.broadcast_in_dim %653, dims = [0, 1, 2] : (tensor<8x2x8xf32>) -> tensor<8x2x8x1xf32>
    %655 = stablehlo.broadcast_in_dim %654, dims = [0, 1, 2, 3] : (tensor<8x2x8x1xf32>) -> tensor<8x2x8x8xf32>
    %656 = stablehlo.subtract %651, %655 : tensor<8x2x8x8xf32>
    %657 = stablehlo.multiply %649, %656 : tensor<8x2x8x8xf32>
    %658 = stablehlo.dot_general %657, %188, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [2], precision = [HIGHEST, HIGHEST] : (tensor<8x2x8x8xf32>, tensor<8x2x8x8xf32>) -> tensor<8x2x8x8xf32>
    %cst_79 = stablehlo.constant dense<0.353553385> : tensor<f32>
    %659 = stablehlo.broadcast_in_dim %cst_79, dims = [] : (tensor<f32>) -> tensor<8x2x8x8xf32>
    %660 = stablehlo.multiply %659, %658 : tensor<8x2x8x8xf32>
    %661 = stablehlo.dot_general %657, %185, batching_dims = [0, 1] x [0, 1], contracting_dims = [2] x [2], precision = [HIGHEST, HIGHEST] : (tensor<8x2x8x8xf32>, tensor<8x2x8x8xf32>) -> tensor<8x2x8x8xf32>
    %cst_80 = stablehlo.constant dense<0.353553385> : tensor<f32>
    %662 = stablehlo.broadcast_in_dim %cst_80, dims = [] : (tensor<f32>) -> tensor<8x2x8x8xf32>
    %663 = stablehlo.multiply %662, %661 : tensor<8x2x8x8xf32>
    %664 = stablehlo.transpose %660, dims = [0, 2, 1, 3] : (tensor<8x2x8x8xf32>) -> tensor<8x8x2x8xf32>
    %665 = stablehlo.transpose %663, dims = [0, 2, 1, 3] : (tensor<8x2x8x8xf32>) -> tensor<8x8x2x8xf32>
    %666 = stablehlo.transpose %650, dims = [0, 2, 1, 3] : (tensor<8x2x8x8xf32>) -> tensor<8x8x2x8xf32>
    %667 = stablehlo.broadcast_in_dim %664, dims = [0, 1, 3, 4] : (tensor<8x8x2x8xf32>) -> tensor<8x8x1x2x8xf32>
    %668 = stablehlo.broadcast_in_dim %665, dims = [0, 1, 3, 4] : (tensor<8x8x2x8xf32>) -> tensor<8x8x1x2x8xf32>
    %669 = stablehlo.broadcast_in_dim %666, dims = [0, 1, 3, 4] : (tensor<8x8x2x8xf32>) -> tensor<8x8x1x2x8xf32>
    %670 = stablehlo.concatenate %667, %668, %669, dim = 2 : (tensor<8x8x1x2x8xf32>, tensor<8x8x1x2x8xf32>, tensor<8x8x1x2x8xf32>) -> tensor<8x8x3x2x8xf32>
    %671 = stablehlo.reshape %670 : (tensor<8x8x3x2x8xf32>) -> tensor<8x8x48xf32>
    %672 = stablehlo.reshape %173 : (tensor<8x8x16xf32>) -> tensor<64x16xf32>
    %673 = stablehlo.reshape %671 : (tensor<8x8x48xf32>) -> tensor<64x48xf32>
    %674 = stablehlo.dot_general %673, %510, contracting_dims = [1] x [0], precision = [HIGHEST, HIGHEST] : (tensor<64x48xf32>, tensor<48x16xf32>) -> tensor<64x16xf32>
    %675 = stablehlo.transpose %673, dims = [1, 0] : (tensor<64x48xf32>) -> tensor<48x64xf32>
    %676 = stablehlo.dot_general %675, %672, contracting_dims = [1] x [0], precision = [HIGHEST, HIGHEST] : (tensor<48x64xf32>, tensor<64x16xf32>) -> tensor<48x16xf32>
    %cst_81 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %677 = stablehlo.reduce(%673 init: %cst_81) applies stablehlo.add across dimensions = [0] : (tensor<64x48xf32>, tensor<f32>) -> tensor<48xf32>
    %678 = stablehlo.reshape %674 : (tensor<64x16xf32>) -> tensor<8x8x16xf32>
    %679 = stablehlo.custom_call @Sharding(%676) {backend_config = "", mhlo.sharding = "{replicated}"} : (tensor<48x16xf32>) -> tensor<48x16xf32>
    %680 = stablehlo.custom_call @Sharding(%679) {backend_config = "", mhlo.sharding = "{devices=[8,1]<=[8]}"} : (tensor<48x16xf32>) -> tensor<48x16xf32>
    %681 = stablehlo.optimization_barrier %680 : tensor<48x16xf32>
    %682 = stablehlo.custom_call @Sharding(%677) {backend_config = "", mhlo.sharding = "{replicated}"} : (tensor<48xf32>) -> tensor<48xf32>
    %683 = stablehlo.custom_call @Sharding(%682) {backend_config = "", mhlo.sharding = "{devices=[8]<=[8]}"} : (tensor<48xf32>) -> tensor<48xf32>
    %684 = stablehlo.optimization_barrier %683 : tensor<48xf32>
    %685 = stablehlo.broadcast_in_dim %155, dims = [0, 1, 2] : (tensor<8x8x1xf32>) -> tensor<8x8x16xf32>
    %686 = stablehlo.subtract %66#12, %685 : tensor<8x8x16xf32>
    %687 = stablehlo.broadcast_in_dim %165, dims = [0, 1, 2] : (tensor<8x8x1xf32>) -> tensor<8x8x16xf32>
    %688 = stablehlo.multiply %686, %687 : tensor<8x8x16xf32>
    %689 = stablehlo.broadcast_in_dim %506, dims = [2] : (tensor<16xf32>) -> tensor<1x1x16xf32>
    %690 = stablehlo.broadcast_in_dim %689, dims = [0, 1, 2] : (tensor<1x1x16xf32>) -> tensor<8x8x16xf32>
    %691 = stablehlo.multiply %678, %690 : tensor<8x8x16xf32>
    %cst_82 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %692 = stablehlo.reduce(%691 init: %cst_82) applies stablehlo.add across dimensions = [2] : (tensor<8x8x16xf32>, tensor<f32>) -> tensor<8x8xf32>
    %693 = stablehlo.broadcast_in_dim %692, dims = [0, 1] : (tensor<8x8xf32>) -> tensor<8x8x1xf32>
    %cst_83 = stablehlo.constant dense<1.600000e+01> : tensor<f32>
    %694 = stablehlo.broadcast_in_dim %cst_83, dims = [] : (tensor<f32>) -> tensor<8x8x1xf32>
    %695 = stablehlo.divide %693, %694 : tensor<8x8x1xf32>
    %696 = stablehlo.multiply %691, %688 : tensor<8x8x16xf32>
    %cst_84 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %697 = stablehlo.reduce(%696 init: %cst_84) applies stablehlo.add across dimensions = [2] : (tensor<8x8x16xf32>, tensor<f32>) -> tensor<8x8xf32>
    %698 = stablehlo.broadcast_in_dim %697, dims = [0, 1] : (tensor<8x8xf32>) -> tensor<8x8x1xf32>
    %cst_85 = stablehlo.constant dense<1.600000e+01> : tensor<f32>
    %699 = stablehlo.broadcast_in_dim %cst_85, dims = [] : (tensor<f32>) -> tensor<8x8x1xf32>
    %700 = stablehlo.divide %698, %699 : tensor<8x8x1xf32>
    %701 = stablehlo.broadcast_in_dim %695, dims = [0, 1, 2] : (tensor<8x8x1xf32>) -> tensor<8x8x16xf32>
    %702 = stablehlo.subtract %691, %701 : tensor<8x8x16xf32>
    %703 = stablehlo.broadcast_in_dim %700, dims = [0, 1, 2] : (tensor<8x8x1xf32>) -> tensor<8x8x16xf32>
    %704 = stablehlo.multiply %688, %703 : tensor<8x8x16xf32>
    %705 = stablehlo.subtract %702, %704 : tensor<8x8x16xf32>
    %706 = stablehlo.broadcast_in_dim %165, dims = [0, 1, 2] : (tensor<8x8x1xf32>) -> tensor<8x8x16xf32>
    %707 = stablehlo.multiply %706, %705 : tensor<8x8x16xf32>
    %708 = stablehlo.multiply %678, %688 : tensor<8x8x16xf32>
    %cst_86 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %709 = stablehlo.reduce(%708 init: %cst_86) applies stablehlo.add across dimensions = [0, 1] : (tensor<8x8x16xf32>, tensor<f32>) -> tensor<16xf32>
    %cst_87 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %710 = stablehlo.reduce(%678 init: %cst_87) applies stablehlo.add across dimensions = [0, 1] : (tensor<8x8x16xf32>, tensor<f32>) -> tensor<16xf32>
    %711 = stablehlo.add %609, %707 : tensor<8x8x16xf32>
    %712 = stablehlo.custom_call @Sharding(%709) {backend_config = "", mhlo.sharding = "{replicated}"} : (tensor<16xf32>) -> tensor<16xf32>
    %713 = stablehlo.custom_call @Sharding(%712) {backend_config = "", mhlo.sharding = "{devices=[8]<=[8]}"} : (tensor<16xf32>) -> tensor<16xf32>
    %714 = stablehlo.optimization_barrier %713 : tensor<16xf32>
    %715 = stablehlo.custom_call @Sharding(%710) {backend_config = "", mhlo.sharding = "{replicated}"} : (tensor<16xf32>) -> tensor<16xf32>
    %716 = stablehlo.custom_call @Sharding(%715) {backend_config = "", mhlo.sharding = "{devices=[8]<=[8]}"} : (tensor<16xf32>) -> tensor<16xf32>
    %717 = stablehlo.optimization_barrier %716 : tensor<16xf32>
    %cst_88 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %718 = stablehlo.reduce(%711 init: %cst_88) applies stablehlo.add across dimensions = [0] : (tensor<8x8x16xf32>, tensor<f32>) -> tensor<8x16xf32>
    %719 = stablehlo.broadcast_in_dim %718, dims = [1, 2] : (tensor<8x16xf32>) -> tensor<1x8x16xf32>
    %720 = stablehlo.reshape %719 : (tensor<1x8x16xf32>) -> tensor<8x16xf32>
    %cst_89 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %721 = stablehlo.broadcast_in_dim %cst_89, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %722 = stablehlo.convert %4 : (tensor<8xi64>) -> tensor<8xi32>
    %723 = stablehlo.broadcast_in_dim %722, dims = [0] : (tensor<8xi32>) -> tensor<8x1xi32>
    %724 = "stablehlo.scatter"(%721, %723, %720) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>, unique_indices = false}> ({
    ^bb0(%arg55: tensor<f32>, %arg56: tensor<f32>):
      %1466 = stablehlo.add %arg55, %arg56 : tensor<f32>
      stablehlo.return %1466 : tensor<f32>
    }) : (tensor<8x16xf32>, tensor<8x1xi32>, tensor<8x16xf32>) -> tensor<8x16xf32>
    %725 = stablehlo.custom_call @Sharding(%724) {backend_config = "", mhlo.sharding = "{replicated}"} : (tensor<8x16xf32>) -> tensor<8x16xf32>
    %726 = stablehlo.custom_call @Sharding(%725) {backend_config = "", mhlo.sharding = "{devices=[1,8]<=[8]}"} : (tensor<8x16xf32>) -> tensor<8x16xf32>
    %727 = stablehlo.optimization_barrier %726 : tensor<8x16xf32>
    %728 = stablehlo.reshape %arg5 : (tensor<8x8xi64>) -> tensor<64xi64>
    %729 = stablehlo.reshape %711 : (tensor<8x8x16xf32>) -> tensor<64x16xf32>
    %cst_90 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %730 = stablehlo.broadcast_in_dim %cst_90, dims = [] : (tensor<f32>) -> tensor<32x16xf32>
    %731 = stablehlo.convert %728 : (tensor<64xi64>) -> tensor<64xi32>
    %732 = stablehlo.broadcast_in_dim %731, dims = [0] : (tensor<64xi32>) -> tensor<64x1xi32>
    %733 = "stablehlo.scatter"(%730, %732, %729) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>, unique_indices = false}> ({
    ^bb0(%arg55: tensor<f32>, %arg56: tensor<f32>):
      %1466 = stablehlo.add %arg55, %arg56 : tensor<f32>
      stablehlo.return %1466 : tensor<f32>
    }) : (tensor<32x16xf32>, tensor<64x1xi32>, tensor<64x16xf32>) -> tensor<32x16xf32>
    %734 = stablehlo.custom_call @Sharding(%733) {backend_config = "", mhlo.sharding = "{replicated}"} : (tensor<32x16xf32>) -> tensor<32x16xf32>
    %735 = stablehlo.custom_call @Sharding(%734) {backend_config = "", mhlo.sharding = "{devices=[8,1]<=[8]}"} : (tensor<32x16xf32>) -> tensor<32x16xf32>
    %736 = stablehlo.optimization_barrier %735 : tensor<32x16xf32>
    %737 = stablehlo.reshape %736 : (tensor<32x16xf32>) -> tensor<8x4x16xf32>
    %738 = stablehlo.reshape %737 : (tensor<8x4x16xf32>) -> tensor<8x64xf32>
    %739 = stablehlo.custom_call @Sharding(%738) {backend_config = "", mhlo.sharding = "{devices=[8,1]<=[8]}"} : (tensor<8x64xf32>) -> tensor<8x64xf32>
    %740 = chlo.square %739 : tensor<8x64xf32> -> tensor<8x64xf32>
    %cst_91 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %741 = stablehlo.reduce(%740 init: %cst_91) applies stablehlo.add across dimensions = [1] : (tensor<8x64xf32>, tensor<f32>) -> tensor<8xf32>
    %742 = stablehlo.broadcast_in_dim %741, dims = [0] : (tensor<8xf32>) -> tensor<8x1xf32>
    %743 = stablehlo.transpose %727, dims = [1, 0] : (tensor<8x16xf32>) -> tensor<16x8xf32>
    %744 = stablehlo.reshape %743 : (tensor<16x8xf32>) -> tensor<8x2x8xf32>
    %745 = stablehlo.reshape %744 : (tensor<8x2x8xf32>) -> tensor<8x16xf32>
    %746 = stablehlo.custom_call @Sharding(%745) {backend_config = "", mhlo.sharding = "{devices=[8,1]<=[8]}"} : (tensor<8x16xf32>) -> tensor<8x16xf32>
    %747 = chlo.square %746 : tensor<8x16xf32> -> tensor<8x16xf32>
    %cst_92 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %748 = stablehlo.reduce(%747 init: %cst_92) applies stablehlo.add across dimensions = [1] : (tensor<8x16xf32>, tensor<f32>) -> tensor<8xf32>
    %749 = stablehlo.broadcast_in_dim %748, dims = [0] : (tensor<8xf32>) -> tensor<8x1xf32>
    %750 = stablehlo.reshape %714 : (tensor<16xf32>) -> tensor<16x1xf32>
    %751 = stablehlo.reshape %750 : (tensor<16x1xf32>) -> tensor<8x2x1xf32>
    %752 = stablehlo.reshape %751 : (tensor<8x2x1xf32>) -> tensor<8x2xf32>
    %753 = stablehlo.custom_call @Sharding(%752) {backend_config = "", mhlo.sharding = "{devices=[8,1]<=[8]}"} : (tensor<8x2xf32>) -> tensor<8x2xf32>
    %754 = chlo.square %753 : tensor<8x2xf32> -> tensor<8x2xf32>
    %cst_93 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %755 = stablehlo.reduce(%754 init: %cst_93) applies stablehlo.add across dimensions = [1] : (tensor<8x2xf32>, tensor<f32>) -> tensor<8xf32>
    %756 = stablehlo.broadcast_in_dim %755, dims = [0] : (tensor<8xf32>) -> tensor<8x1xf32>
    %757 = stablehlo.reshape %717 : (tensor<16xf32>) -> tensor<16x1xf32>
    %758 = stablehlo.reshape %757 : (tensor<16x1xf32>) -> tensor<8x2x1xf32>
    %759 = stablehlo.reshape %758 : (tensor<8x2x1xf32>) -> tensor<8x2xf32>
    %760 = stablehlo.custom_call @Sharding(%759) {backend_config = "", mhlo.sharding = "{devices=[8,1]<=[8]}"} : (tensor<8x2xf32>) -> tensor<8x2xf32>
    %761 = chlo.square %760 : tensor<8x2xf32> -> tensor<8x2xf32>
    %cst_94 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %762 = stablehlo.reduce(%761 init: %cst_94) applies stablehlo.add across dimensions = [1] : (tensor<8x2xf32>, tensor<f32>) -> tensor<8xf32>
    %763 = stablehlo.broadcast_in_dim %762, dims = [0] : (tensor<8xf32>) -> tensor<8x1xf32>
    %764 = stablehlo.reshape %681 : (tensor<48x16xf32>) -> tensor<8x6x16xf32>
    %765 = stablehlo.reshape %764 : (tensor<8x6x16xf32>) -> tensor<8x96xf32>
    %766 = stablehlo.custom_call @Sharding(%765) {backend_config = "", mhlo.sharding = "{devices=[8,1]<=[8]}"} : (tensor<8x96xf32>) -> tensor<8x96xf32>
    %767 = chlo.square %766 : tensor<8x96xf32> -> tensor<8x96xf32>
    %cst_95 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %768 = stablehlo.reduce(%767 init: %cst_95) applies stablehlo.add across dimensions = [1] : (tensor<8x96xf32>, tensor<f32>) -> tensor<8xf32>
    %769 = stablehlo.broadcast_in_dim %768, dims = [0] : (tensor<8xf32>) -> tensor<8x1xf32>
    %770 = stablehlo.reshape %684 : (tensor<48xf32>) -> tensor<48x1xf32>
    %771 = stablehlo.reshape %770 : (tensor<48x1xf32>) -> tensor<8x6x1xf32>
    %772 = stablehlo.reshape %771 : (tensor<8x6x1xf32>) -> tensor<8x6xf32>
    %773 = stablehlo.custom_call @Sharding(%772) {backend_config = "", mhlo.sharding = "{devices=[8,1]<=[8]}"} : (tensor<8x6xf32>) -> tensor<8x6xf32>
    %774 = chlo.square %773 : tensor<8x6xf32> -> tensor<8x6xf32>
    %cst_96 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %775 = stablehlo.reduce(%774 init: %cst_96) applies stablehlo.add across dimensions = [1] : (tensor<8x6xf32>, tensor<f32>) -> tensor<8xf32>
    %776 = stablehlo.broadcast_in_dim %775, dims = [0] : (tensor<8xf32>) -> tensor<8x1xf32>
    %777 = stablehlo.reshape %625 : (tensor<16x16xf32>) -> tensor<8x2x16xf32>
    %778 = stablehlo.reshape %777 : (tensor<8x2x16xf32>) -> tensor<8x32xf32>
    %779 = stablehlo.custom_call @Sharding(%778) {backend_config = "", mhlo.sharding = "{devices=[8,1]<=[8]}"} : (tensor<8x32xf32>) -> tensor<8x32xf32>
    %780 = chlo.square %779 : tensor<8x32xf32> -> tensor<8x32xf32>
    %cst_97 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %781 = stablehlo.reduce(%780 init: %cst_97) applies stablehlo.add across dimensions = [1] : (tensor<8x32xf32>, tensor<f32>) -> tensor<8xf32>
    %782 = stablehlo.broadcast_in_dim %781, dims = [0] : (tensor<8xf32>) -> tensor<8x1xf32>
    %783 = stablehlo.reshape %628 : (tensor<16xf32>) -> tensor<16x1xf32>
    %784 = stablehlo.reshape %783 : (tensor<16x1xf32>) -> tensor<8x2x1xf32>
    %785 = stablehlo.reshape %784 : (tensor<8x2x1xf32>) -> tensor<8x2xf32>
    %786 = stablehlo.custom_call @Sharding(%785) {backend_config = "", mhlo.sharding = "{devices=[8,1]<=[8]}"} : (tensor<8x2xf32>) -> tensor<8x2xf32>
    %787 = chlo.square %786 : tensor<8x2xf32> -> tensor<8x2xf32>
    %cst_98 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %788 = stablehlo.reduce(%787 init: %cst_98) applies stablehlo.add across dimensions = [1] : (tensor<8x2xf32>, tensor<f32>) -> tensor<8xf32>
    %789 = stablehlo.broadcast_in_dim %788, dims = [0] : (tensor<8xf32>) -> tensor<8x1xf32>
    %790 = stablehlo.reshape %612 : (tensor<16xf32>) -> tensor<16x1xf32>
    %791 = stablehlo.reshape %790 : (tensor<16x1xf32>) -> tensor<8x2x1xf32>
    %792 = stablehlo.reshape %791 : (tensor<8x2x1xf32>) -> tensor<8x2xf32>
    %793 = stablehlo.custom_call @Sharding(%792) {backend_config = "", mhlo.sharding = "{devices=[8,1]<=[8]}"} : (tensor<8x2xf32>) -> tensor<8x2xf32>
    %794 = chlo.square %793 : tensor<8x2xf32> -> tensor<8x2xf32>
    %cst_99 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %795 = stablehlo.reduce(%794 init: %cst_99) applies stablehlo.add across dimensions = [1] : (tensor<8x2xf32>, tensor<f32>) -> tensor<8xf32>
    %796 = stablehlo.broadcast_in_dim %795, dims = [0] : (tensor<8xf32>) -> tensor<8x1xf32>
    %797 = stablehlo.reshape %615 : (tensor<16xf32>) -> tensor<16x1xf32>
    %798 = stablehlo.reshape %797 : (tensor<16x1xf32>) -> tensor<8x2x1xf32>
    %799 = stablehlo.reshape %798 : (tensor<8x2x1xf32>) -> tensor<8x2xf32>
    %800 = stablehlo.custom_call @Sharding(%799) {backend_config = "", mhlo.sharding = "{devices=[8,1]<=[8]}"} : (tensor<8x2xf32>) -> tensor<8x2xf32>
    %801 = chlo.square %800 : tensor<8x2xf32> -> tensor<8x2xf32>
    %cst_100 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %802 = stablehlo.reduce(%801 init: %cst_100) applies stablehlo.add across dimensions = [1] : (tensor<8x2xf32>, tensor<f32>) -> tensor<8xf32>
    %803 = stablehlo.broadcast_in_dim %802, dims = [0] : (tensor<8xf32>) -> tensor<8x1xf32>
    %804 = stablehlo.reshape %579 : (tensor<64x16xf32>) -> tensor<8x8x16xf32>
    %805 = stablehlo.reshape %804 : (tensor<8x8x16xf32>) -> tensor<8x128xf32>
    %806 = stablehlo.custom_call @Sharding(%805) {backend_config = "", mhlo.sharding = "{devices=[8,1]<=[8]}"} : (tensor<8x128xf32>) -> tensor<8x128xf32>
    %807 = chlo.square %806 : tensor<8x128xf32> -> tensor<8x128xf32>
    %cst_101 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %808 = stablehlo.reduce(%807 init: %cst_101) applies stablehlo.add across dimensions = [1] : (tensor<8x128xf32>, tensor<f32>) -> tensor<8xf32>
    %809 = stablehlo.broadcast_in_dim %808, dims = [0] : (tensor<8xf32>) -> tensor<8x1xf32>
    %810 = stablehlo.reshape %582 : (tensor<64xf32>) -> tensor<64x1xf32>
    %811 = stablehlo.reshape %810 : (tensor<64x1xf32>) -> tensor<8x8x1xf32>
    %812 = stablehlo.reshape %811 : (tensor<8x8x1xf32>) -> tensor<8x8xf32>
    %813 = stablehlo.custom_call @Sharding(%812) {backend_config = "", mhlo.sharding = "{devices=[8,1]<=[8]}"} : (tensor<8x8xf32>) -> tensor<8x8xf32>
    %814 = chlo.square %813 : tensor<8x8xf32> -> tensor<8x8xf32>
    %cst_102 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %815 = stablehlo.reduce(%814 init: %cst_102) applies stablehlo.add across dimensions = [1] : (tensor<8x8xf32>, tensor<f32>) -> tensor<8xf32>
    %816 = stablehlo.broadcast_in_dim %815, dims = [0] : (tensor<8xf32>) -> tensor<8x1xf32>
    %817 = stablehlo.transpose %539, dims = [1, 0] : (tensor<16x64xf32>) -> tensor<64x16xf32>
    %818 = stablehlo.reshape %817 : (tensor<64x16xf32>) -> tensor<8x8x16xf32>
    %819 = stablehlo.reshape %818 : (tensor<8x8x16xf32>) -> tensor<8x128xf32>
    %820 = stablehlo.custom_call @Sharding(%819) {backend_config = "", mhlo.sharding = "{devices=[8,1]<=[8]}"} : (tensor<8x128xf32>) -> tensor<8x128xf32>
    %821 = chlo.square %820 : tensor<8x128xf32> -> tensor<8x128xf32>
    %cst_103 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %822 = stablehlo.reduce(%821 init: %cst_103) applies stablehlo.add across dimensions = [1] : (tensor<8x128xf32>, tensor<f32>) -> tensor<8xf32>
    %823 = stablehlo.broadcast_in_dim %822, dims = [0] : (tensor<8xf32>) -> tensor<8x1xf32>
    %824 = stablehlo.reshape %542 : (tensor<16xf32>) -> tensor<16x1xf32>
    %825 = stablehlo.reshape %824 : (tensor<16x1xf32>) -> tensor<8x2x1xf32>
    %826 = stablehlo.reshape %825 : (tensor<8x2x1xf32>) -> tensor<8x2xf32>
    %827 = stablehlo.custom_call @Sharding(%826) {backend_config = "", mhlo.sharding = "{devices=[8,1]<=[8]}"} : (tensor<8x2xf32>) -> tensor<8x2xf32>
    %828 = chlo.square %827 : tensor<8x2xf32> -> tensor<8x2xf32>
    %cst_104 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %829 = stablehlo.reduce(%828 init: %cst_104) applies stablehlo.add across dimensions = [1] : (tensor<8x2xf32>, tensor<f32>) -> tensor<8xf32>
    %830 = stablehlo.broadcast_in_dim %829, dims = [0] : (tensor<8xf32>) -> tensor<8x1xf32>
    %831 = stablehlo.reshape %440 : (tensor<16xf32>) -> tensor<16x1xf32>
    %832 = stablehlo.reshape %831 : (tensor<16x1xf32>) -> tensor<8x2x1xf32>
    %833 = stablehlo.reshape %832 : (tensor<8x2x1xf32>) -> tensor<8x2xf32>
    %834 = stablehlo.custom_call @Sharding(%833) {backend_config = "", mhlo.sharding = "{devices=[8,1]<=[8]}"} : (tensor<8x2xf32>) -> tensor<8x2xf32>
    %835 = chlo.square %834 : tensor<8x2xf32> -> tensor<8x2xf32>
    %cst_105 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %836 = stablehlo.reduce(%835 init: %cst_105) applies stablehlo.add across dimensions = [1] : (tensor<8x2xf32>, tensor<f32>) -> tensor<8xf32>
    %837 = stablehlo.broadcast_in_dim %836, dims = [0] : (tensor<8xf32>) -> tensor<8x1xf32>
    %838 = stablehlo.reshape %443 : (tensor<16xf32>) -> tensor<16x1xf32>
    %839 = stablehlo.reshape %838 : (tensor<16x1xf32>) -> tensor<8x2x1xf32>
    %840 = stablehlo.reshape %839 : (tensor<8x2x1xf32>) -> tensor<8x2xf32>
    %841 = stablehlo.custom_call @Sharding(%840) {backend_config = "", mhlo.sharding = "{devices=[8,1]<=[8]}"} : (tensor<8x2xf32>) -> tensor<8x2xf32>
    %842 = chlo.square %841 : tensor<8x2xf32> -> tensor<8x2xf32>
    %cst_106 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %843 = stablehlo.reduce(%842 init: %cst_106) applies stablehlo.add across dimensions = [1] : (tensor<8x2xf32>, tensor<f32>) -> tensor<8xf32>
    %844 = stablehlo.broadcast_in_dim %843, dims = [0] : (tensor<8xf32>) -> tensor<8x1xf32>
    %845 = stablehlo.reshape %411 : (tensor<32x16xf32>) -> tensor<8x4x16xf32>
    %846 = stablehlo.reshape %845 : (tensor<8x4x16xf32>) -> tensor<8x64xf32>
    %847 = stablehlo.custom_call @Sharding(%846) {backend_config = "", mhlo.sharding = "{devices=[8,1]<=[8]}"} : (tensor<8x64xf32>) -> tensor<8x64xf32>
    %848 = chlo.square %847 : tensor<8x64xf32> -> tensor<8x64xf32>
    %cst_107 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %849 = stablehlo.reduce(%848 init: %cst_107) applies stablehlo.add across dimensions = [1] : (tensor<8x64xf32>, tensor<f32>) -> tensor<8xf32>
    %850 = stablehlo.broadcast_in_dim %849, dims = [0] : (tensor<8xf32>) -> tensor<8x1xf32>
    %851 = stablehlo.concatenate %742, %749, %756, %763, %769, %776, %782, %789, %796, %803, %809, %816, %823, %830, %837, %844, dim = 1 : (tensor<8x1xf32>, tensor<8x1xf32>, tensor<8x1xf32>, tensor<8x1xf32>, tensor<8x1xf32>, tensor<8x1xf32>, tensor<8x1xf32>, tensor<8x1xf32>, tensor<8x1xf32>, tensor<8x1xf32>, tensor<8x1xf32>, tensor<8x1xf32>, tensor<8x1xf32>, tensor<8x1xf32>, tensor<8x1xf32>, tensor<8x1xf32>) -> tensor<8x16xf32>
    %852 = stablehlo.concatenate %850, dim = 1 : (tensor<8x1xf32>) -> tensor<8x1xf32>
    %853 = stablehlo.concatenate %851, %852, dim = 1 : (tensor<8x16xf32>, tensor<8x1xf32>) -> tensor<8x17xf32>
    %854 = stablehlo.custom_call @Sharding(%853) {backend_config = "", mhlo.sharding = "{devices=[8,1]<=[8]}"} : (tensor<8x17xf32>) -> tensor<8x17xf32>
    %cst_108 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %855 = stablehlo.reduce(%854 init: %cst_108) applies stablehlo.add across dimensions = [0] : (tensor<8x17xf32>, tensor<f32>) -> tensor<17xf32>
    %856 = stablehlo.sqrt %855 : tensor<17xf32>
    %857 = stablehlo.abs %856 : tensor<17xf32>
    %858 = stablehlo.multiply %857, %857 : tensor<17xf32>
    %cst_109 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %859 = stablehlo.reduce(%858 init: %cst_109) applies stablehlo.add across dimensions = [0] : (tensor<17xf32>, tensor<f32>) -> tensor<f32>
    %860 = stablehlo.sqrt %859 : tensor<f32>
    %861 = stablehlo.slice %arg53 [0:1] : (tensor<10xf64>) -> tensor<1xf64>
    %862 = stablehlo.reshape %861 : (tensor<1xf64>) -> tensor<f64>
    %863 = stablehlo.convert %862 : (tensor<f64>) -> tensor<f32>
    %864 = stablehlo.add %860, %863 : tensor<f32>
    %cst_110 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %865 = stablehlo.divide %cst_110, %864 : tensor<f32>
    %866 = stablehlo.slice %arg53 [1:2] : (tensor<10xf64>) -> tensor<1xf64>
    %867 = stablehlo.reshape %866 : (tensor<1xf64>) -> tensor<f64>
    %868 = stablehlo.convert %867 : (tensor<f64>) -> tensor<f32>
    %869 = stablehlo.multiply %865, %868 : tensor<f32>
    %870 = stablehlo.slice %arg53 [2:3] : (tensor<10xf64>) -> tensor<1xf64>
    %871 = stablehlo.reshape %870 : (tensor<1xf64>) -> tensor<f64>
    %872 = stablehlo.convert %871 : (tensor<f64>) -> tensor<f32>
    %873 = stablehlo.minimum %869, %872 : tensor<f32>
    %874 = stablehlo.broadcast_in_dim %873, dims = [] : (tensor<f32>) -> tensor<32x16xf32>
    %875 = stablehlo.multiply %736, %874 : tensor<32x16xf32>
    %876 = stablehlo.broadcast_in_dim %873, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %877 = stablehlo.multiply %727, %876 : tensor<8x16xf32>
    %878 = stablehlo.broadcast_in_dim %873, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %879 = stablehlo.multiply %714, %878 : tensor<16xf32>
    %880 = stablehlo.broadcast_in_dim %873, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %881 = stablehlo.multiply %717, %880 : tensor<16xf32>
    %882 = stablehlo.broadcast_in_dim %873, dims = [] : (tensor<f32>) -> tensor<48x16xf32>
    %883 = stablehlo.multiply %681, %882 : tensor<48x16xf32>
    %884 = stablehlo.broadcast_in_dim %873, dims = [] : (tensor<f32>) -> tensor<48xf32>
    %885 = stablehlo.multiply %684, %884 : tensor<48xf32>
    %886 = stablehlo.broadcast_in_dim %873, dims = [] : (tensor<f32>) -> tensor<16x16xf32>
    %887 = stablehlo.multiply %625, %886 : tensor<16x16xf32>
    %888 = stablehlo.broadcast_in_dim %873, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %889 = stablehlo.multiply %628, %888 : tensor<16xf32>
    %890 = stablehlo.broadcast_in_dim %873, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %891 = stablehlo.multiply %612, %890 : tensor<16xf32>
    %892 = stablehlo.broadcast_in_dim %873, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %893 = stablehlo.multiply %615, %892 : tensor<16xf32>
    %894 = stablehlo.broadcast_in_dim %873, dims = [] : (tensor<f32>) -> tensor<64x16xf32>
    %895 = stablehlo.multiply %579, %894 : tensor<64x16xf32>
    %896 = stablehlo.broadcast_in_dim %873, dims = [] : (tensor<f32>) -> tensor<64xf32>
    %897 = stablehlo.multiply %582, %896 : tensor<64xf32>
    %898 = stablehlo.broadcast_in_dim %873, dims = [] : (tensor<f32>) -> tensor<16x64xf32>
    %899 = stablehlo.multiply %539, %898 : tensor<16x64xf32>
    %900 = stablehlo.broadcast_in_dim %873, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %901 = stablehlo.multiply %542, %900 : tensor<16xf32>
    %902 = stablehlo.broadcast_in_dim %873, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %903 = stablehlo.multiply %440, %902 : tensor<16xf32>
    %904 = stablehlo.broadcast_in_dim %873, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %905 = stablehlo.multiply %443, %904 : tensor<16xf32>
    %906 = stablehlo.broadcast_in_dim %873, dims = [] : (tensor<f32>) -> tensor<32x16xf32>
    %907 = stablehlo.multiply %411, %906 : tensor<32x16xf32>
    %908 = stablehlo.slice %arg53 [3:4] : (tensor<10xf64>) -> tensor<1xf64>
    %909 = stablehlo.reshape %908 : (tensor<1xf64>) -> tensor<f64>
    %910 = stablehlo.convert %909 : (tensor<f64>) -> tensor<f32>
    %911 = stablehlo.broadcast_in_dim %910, dims = [] : (tensor<f32>) -> tensor<32x16xf32>
    %912 = stablehlo.multiply %arg0, %911 : tensor<32x16xf32>
    %913 = stablehlo.convert %909 : (tensor<f64>) -> tensor<f32>
    %914 = stablehlo.broadcast_in_dim %913, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %915 = stablehlo.multiply %arg1, %914 : tensor<8x16xf32>
    %916 = stablehlo.convert %909 : (tensor<f64>) -> tensor<f32>
    %917 = stablehlo.broadcast_in_dim %916, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %918 = stablehlo.multiply %arg6, %917 : tensor<16xf32>
    %919 = stablehlo.convert %909 : (tensor<f64>) -> tensor<f32>
    %920 = stablehlo.broadcast_in_dim %919, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %921 = stablehlo.multiply %arg7, %920 : tensor<16xf32>
    %922 = stablehlo.convert %909 : (tensor<f64>) -> tensor<f32>
    %923 = stablehlo.broadcast_in_dim %922, dims = [] : (tensor<f32>) -> tensor<48x16xf32>
    %924 = stablehlo.multiply %arg8, %923 : tensor<48x16xf32>
    %925 = stablehlo.convert %909 : (tensor<f64>) -> tensor<f32>
    %926 = stablehlo.broadcast_in_dim %925, dims = [] : (tensor<f32>) -> tensor<48xf32>
    %927 = stablehlo.multiply %arg9, %926 : tensor<48xf32>
    %928 = stablehlo.convert %909 : (tensor<f64>) -> tensor<f32>
    %929 = stablehlo.broadcast_in_dim %928, dims = [] : (tensor<f32>) -> tensor<16x16xf32>
    %930 = stablehlo.multiply %arg10, %929 : tensor<16x16xf32>
    %931 = stablehlo.convert %909 : (tensor<f64>) -> tensor<f32>
    %932 = stablehlo.broadcast_in_dim %931, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %933 = stablehlo.multiply %arg11, %932 : tensor<16xf32>
    %934 = stablehlo.convert %909 : (tensor<f64>) -> tensor<f32>
    %935 = stablehlo.broadcast_in_dim %934, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %936 = stablehlo.multiply %arg12, %935 : tensor<16xf32>
    %937 = stablehlo.convert %909 : (tensor<f64>) -> tensor<f32>
    %938 = stablehlo.broadcast_in_dim %937, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %939 = stablehlo.multiply %arg13, %938 : tensor<16xf32>
    %940 = stablehlo.convert %909 : (tensor<f64>) -> tensor<f32>
    %941 = stablehlo.broadcast_in_dim %940, dims = [] : (tensor<f32>) -> tensor<64x16xf32>
    %942 = stablehlo.multiply %arg14, %941 : tensor<64x16xf32>
    %943 = stablehlo.convert %909 : (tensor<f64>) -> tensor<f32>
    %944 = stablehlo.broadcast_in_dim %943, dims = [] : (tensor<f32>) -> tensor<64xf32>
    %945 = stablehlo.multiply %arg15, %944 : tensor<64xf32>
    %946 = stablehlo.convert %909 : (tensor<f64>) -> tensor<f32>
    %947 = stablehlo.broadcast_in_dim %946, dims = [] : (tensor<f32>) -> tensor<16x64xf32>
    %948 = stablehlo.multiply %arg16, %947 : tensor<16x64xf32>
    %949 = stablehlo.convert %909 : (tensor<f64>) -> tensor<f32>
    %950 = stablehlo.broadcast_in_dim %949, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %951 = stablehlo.multiply %arg17, %950 : tensor<16xf32>
    %952 = stablehlo.convert %909 : (tensor<f64>) -> tensor<f32>
    %953 = stablehlo.broadcast_in_dim %952, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %954 = stablehlo.multiply %arg2, %953 : tensor<16xf32>
    %955 = stablehlo.convert %909 : (tensor<f64>) -> tensor<f32>
    %956 = stablehlo.broadcast_in_dim %955, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %957 = stablehlo.multiply %arg3, %956 : tensor<16xf32>
    %958 = stablehlo.convert %909 : (tensor<f64>) -> tensor<f32>
    %959 = stablehlo.broadcast_in_dim %958, dims = [] : (tensor<f32>) -> tensor<32x16xf32>
    %960 = stablehlo.multiply %arg4, %959 : tensor<32x16xf32>
    %961 = stablehlo.slice %arg53 [4:5] : (tensor<10xf64>) -> tensor<1xf64>
    %962 = stablehlo.reshape %961 : (tensor<1xf64>) -> tensor<f64>
    %963 = stablehlo.convert %962 : (tensor<f64>) -> tensor<f32>
    %cst_111 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %964 = stablehlo.compare LT, %963, %cst_111, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %965 = call @_where_9(%964, %arg19, %875) : (tensor<i1>, tensor<32x16xf32>, tensor<32x16xf32>) -> tensor<32x16xf32>
    %cst_112 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %966 = stablehlo.subtract %963, %cst_112 : tensor<f32>
    %967 = call @_where_10(%964, %963, %966) : (tensor<i1>, tensor<f32>, tensor<f32>) -> tensor<f32>
    %968 = stablehlo.subtract %875, %arg19 : tensor<32x16xf32>
    %969 = stablehlo.broadcast_in_dim %967, dims = [] : (tensor<f32>) -> tensor<32x16xf32>
    %970 = stablehlo.multiply %969, %968 : tensor<32x16xf32>
    %971 = stablehlo.add %965, %970 : tensor<32x16xf32>
    %972 = stablehlo.convert %962 : (tensor<f64>) -> tensor<f32>
    %cst_113 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %973 = stablehlo.compare LT, %972, %cst_113, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %974 = call @_where_11(%973, %arg20, %877) : (tensor<i1>, tensor<8x16xf32>, tensor<8x16xf32>) -> tensor<8x16xf32>
    %cst_114 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %975 = stablehlo.subtract %972, %cst_114 : tensor<f32>
    %976 = call @_where_10(%973, %972, %975) : (tensor<i1>, tensor<f32>, tensor<f32>) -> tensor<f32>
    %977 = stablehlo.subtract %877, %arg20 : tensor<8x16xf32>
    %978 = stablehlo.broadcast_in_dim %976, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %979 = stablehlo.multiply %978, %977 : tensor<8x16xf32>
    %980 = stablehlo.add %974, %979 : tensor<8x16xf32>
    %981 = stablehlo.convert %962 : (tensor<f64>) -> tensor<f32>
    %cst_115 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %982 = stablehlo.compare LT, %981, %cst_115, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %983 = call @_where_12(%982, %arg21, %879) : (tensor<i1>, tensor<16xf32>, tensor<16xf32>) -> tensor<16xf32>
    %cst_116 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %984 = stablehlo.subtract %981, %cst_116 : tensor<f32>
    %985 = call @_where_10(%982, %981, %984) : (tensor<i1>, tensor<f32>, tensor<f32>) -> tensor<f32>
    %986 = stablehlo.subtract %879, %arg21 : tensor<16xf32>
    %987 = stablehlo.broadcast_in_dim %985, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %988 = stablehlo.multiply %987, %986 : tensor<16xf32>
    %989 = stablehlo.add %983, %988 : tensor<16xf32>
    %990 = stablehlo.convert %962 : (tensor<f64>) -> tensor<f32>
    %cst_117 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %991 = stablehlo.compare LT, %990, %cst_117, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %992 = call @_where_12(%991, %arg22, %881) : (tensor<i1>, tensor<16xf32>, tensor<16xf32>) -> tensor<16xf32>
    %cst_118 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %993 = stablehlo.subtract %990, %cst_118 : tensor<f32>
    %994 = call @_where_10(%991, %990, %993) : (tensor<i1>, tensor<f32>, tensor<f32>) -> tensor<f32>
    %995 = stablehlo.subtract %881, %arg22 : tensor<16xf32>
    %996 = stablehlo.broadcast_in_dim %994, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %997 = stablehlo.multiply %996, %995 : tensor<16xf32>
    %998 = stablehlo.add %992, %997 : tensor<16xf32>
    %999 = stablehlo.convert %962 : (tensor<f64>) -> tensor<f32>
    %cst_119 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %1000 = stablehlo.compare LT, %999, %cst_119, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %1001 = call @_where_13(%1000, %arg23, %883) : (tensor<i1>, tensor<48x16xf32>, tensor<48x16xf32>) -> tensor<48x16xf32>
    %cst_120 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %1002 = stablehlo.subtract %999, %cst_120 : tensor<f32>
    %1003 = call @_where_10(%1000, %999, %1002) : (tensor<i1>, tensor<f32>, tensor<f32>) -> tensor<f32>
    %1004 = stablehlo.subtract %883, %arg23 : tensor<48x16xf32>
    %1005 = stablehlo.broadcast_in_dim %1003, dims = [] : (tensor<f32>) -> tensor<48x16xf32>
    %1006 = stablehlo.multiply %1005, %1004 : tensor<48x16xf32>
    %1007 = stablehlo.add %1001, %1006 : tensor<48x16xf32>
    %1008 = stablehlo.convert %962 : (tensor<f64>) -> tensor<f32>
    %cst_121 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %1009 = stablehlo.compare LT, %1008, %cst_121, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %1010 = call @_where_14(%1009, %arg24, %885) : (tensor<i1>, tensor<48xf32>, tensor<48xf32>) -> tensor<48xf32>
    %cst_122 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %1011 = stablehlo.subtract %1008, %cst_122 : tensor<f32>
    %1012 = call @_where_10(%1009, %1008, %1011) : (tensor<i1>, tensor<f32>, tensor<f32>) -> tensor<f32>
    %1013 = stablehlo.subtract %885, %arg24 : tensor<48xf32>
    %1014 = stablehlo.broadcast_in_dim %1012, dims = [] : (tensor<f32>) -> tensor<48xf32>
    %1015 = stablehlo.multiply %1014, %1013 : tensor<48xf32>
    %1016 = stablehlo.add %1010, %1015 : tensor<48xf32>
    %1017 = stablehlo.convert %962 : (tensor<f64>) -> tensor<f32>
    %cst_123 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %1018 = stablehlo.compare LT, %1017, %cst_123, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %1019 = call @_where_15(%1018, %arg25, %887) : (tensor<i1>, tensor<16x16xf32>, tensor<16x16xf32>) -> tensor<16x16xf32>
    %cst_124 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %1020 = stablehlo.subtract %1017, %cst_124 : tensor<f32>
    %1021 = call @_where_10(%1018, %1017, %1020) : (tensor<i1>, tensor<f32>, tensor<f32>) -> tensor<f32>
    %1022 = stablehlo.subtract %887, %arg25 : tensor<16x16xf32>
    %1023 = stablehlo.broadcast_in_dim %1021, dims = [] : (tensor<f32>) -> tensor<16x16xf32>
    %1024 = stablehlo.multiply %1023, %1022 : tensor<16x16xf32>
    %1025 = stablehlo.add %1019, %1024 : tensor<16x16xf32>
    %1026 = stablehlo.convert %962 : (tensor<f64>) -> tensor<f32>
    %cst_125 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %1027 = stablehlo.compare LT, %1026, %cst_125, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %1028 = call @_where_12(%1027, %arg26, %889) : (tensor<i1>, tensor<16xf32>, tensor<16xf32>) -> tensor<16xf32>
    %cst_126 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %1029 = stablehlo.subtract %1026, %cst_126 : tensor<f32>
    %1030 = call @_where_10(%1027, %1026, %1029) : (tensor<i1>, tensor<f32>, tensor<f32>) -> tensor<f32>
    %1031 = stablehlo.subtract %889, %arg26 : tensor<16xf32>
    %1032 = stablehlo.broadcast_in_dim %1030, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1033 = stablehlo.multiply %1032, %1031 : tensor<16xf32>
    %1034 = stablehlo.add %1028, %1033 : tensor<16xf32>
    %1035 = stablehlo.convert %962 : (tensor<f64>) -> tensor<f32>
    %cst_127 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %1036 = stablehlo.compare LT, %1035, %cst_127, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %1037 = call @_where_12(%1036, %arg27, %891) : (tensor<i1>, tensor<16xf32>, tensor<16xf32>) -> tensor<16xf32>
    %cst_128 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %1038 = stablehlo.subtract %1035, %cst_128 : tensor<f32>
    %1039 = call @_where_10(%1036, %1035, %1038) : (tensor<i1>, tensor<f32>, tensor<f32>) -> tensor<f32>
    %1040 = stablehlo.subtract %891, %arg27 : tensor<16xf32>
    %1041 = stablehlo.broadcast_in_dim %1039, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1042 = stablehlo.multiply %1041, %1040 : tensor<16xf32>
    %1043 = stablehlo.add %1037, %1042 : tensor<16xf32>
    %1044 = stablehlo.convert %962 : (tensor<f64>) -> tensor<f32>
    %cst_129 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %1045 = stablehlo.compare LT, %1044, %cst_129, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %1046 = call @_where_12(%1045, %arg28, %893) : (tensor<i1>, tensor<16xf32>, tensor<16xf32>) -> tensor<16xf32>
    %cst_130 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %1047 = stablehlo.subtract %1044, %cst_130 : tensor<f32>
    %1048 = call @_where_10(%1045, %1044, %1047) : (tensor<i1>, tensor<f32>, tensor<f32>) -> tensor<f32>
    %1049 = stablehlo.subtract %893, %arg28 : tensor<16xf32>
    %1050 = stablehlo.broadcast_in_dim %1048, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1051 = stablehlo.multiply %1050, %1049 : tensor<16xf32>
    %1052 = stablehlo.add %1046, %1051 : tensor<16xf32>
    %1053 = stablehlo.convert %962 : (tensor<f64>) -> tensor<f32>
    %cst_131 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %1054 = stablehlo.compare LT, %1053, %cst_131, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %1055 = call @_where_16(%1054, %arg29, %895) : (tensor<i1>, tensor<64x16xf32>, tensor<64x16xf32>) -> tensor<64x16xf32>
    %cst_132 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %1056 = stablehlo.subtract %1053, %cst_132 : tensor<f32>
    %1057 = call @_where_10(%1054, %1053, %1056) : (tensor<i1>, tensor<f32>, tensor<f32>) -> tensor<f32>
    %1058 = stablehlo.subtract %895, %arg29 : tensor<64x16xf32>
    %1059 = stablehlo.broadcast_in_dim %1057, dims = [] : (tensor<f32>) -> tensor<64x16xf32>
    %1060 = stablehlo.multiply %1059, %1058 : tensor<64x16xf32>
    %1061 = stablehlo.add %1055, %1060 : tensor<64x16xf32>
    %1062 = stablehlo.convert %962 : (tensor<f64>) -> tensor<f32>
    %cst_133 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %1063 = stablehlo.compare LT, %1062, %cst_133, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %1064 = call @_where_17(%1063, %arg30, %897) : (tensor<i1>, tensor<64xf32>, tensor<64xf32>) -> tensor<64xf32>
    %cst_134 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %1065 = stablehlo.subtract %1062, %cst_134 : tensor<f32>
    %1066 = call @_where_10(%1063, %1062, %1065) : (tensor<i1>, tensor<f32>, tensor<f32>) -> tensor<f32>
    %1067 = stablehlo.subtract %897, %arg30 : tensor<64xf32>
    %1068 = stablehlo.broadcast_in_dim %1066, dims = [] : (tensor<f32>) -> tensor<64xf32>
    %1069 = stablehlo.multiply %1068, %1067 : tensor<64xf32>
    %1070 = stablehlo.add %1064, %1069 : tensor<64xf32>
    %1071 = stablehlo.convert %962 : (tensor<f64>) -> tensor<f32>
    %cst_135 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %1072 = stablehlo.compare LT, %1071, %cst_135, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %1073 = call @_where_18(%1072, %arg31, %899) : (tensor<i1>, tensor<16x64xf32>, tensor<16x64xf32>) -> tensor<16x64xf32>
    %cst_136 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %1074 = stablehlo.subtract %1071, %cst_136 : tensor<f32>
    %1075 = call @_where_10(%1072, %1071, %1074) : (tensor<i1>, tensor<f32>, tensor<f32>) -> tensor<f32>
    %1076 = stablehlo.subtract %899, %arg31 : tensor<16x64xf32>
    %1077 = stablehlo.broadcast_in_dim %1075, dims = [] : (tensor<f32>) -> tensor<16x64xf32>
    %1078 = stablehlo.multiply %1077, %1076 : tensor<16x64xf32>
    %1079 = stablehlo.add %1073, %1078 : tensor<16x64xf32>
    %1080 = stablehlo.convert %962 : (tensor<f64>) -> tensor<f32>
    %cst_137 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %1081 = stablehlo.compare LT, %1080, %cst_137, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %1082 = call @_where_12(%1081, %arg32, %901) : (tensor<i1>, tensor<16xf32>, tensor<16xf32>) -> tensor<16xf32>
    %cst_138 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %1083 = stablehlo.subtract %1080, %cst_138 : tensor<f32>
    %1084 = call @_where_10(%1081, %1080, %1083) : (tensor<i1>, tensor<f32>, tensor<f32>) -> tensor<f32>
    %1085 = stablehlo.subtract %901, %arg32 : tensor<16xf32>
    %1086 = stablehlo.broadcast_in_dim %1084, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1087 = stablehlo.multiply %1086, %1085 : tensor<16xf32>
    %1088 = stablehlo.add %1082, %1087 : tensor<16xf32>
    %1089 = stablehlo.convert %962 : (tensor<f64>) -> tensor<f32>
    %cst_139 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %1090 = stablehlo.compare LT, %1089, %cst_139, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %1091 = call @_where_12(%1090, %arg33, %903) : (tensor<i1>, tensor<16xf32>, tensor<16xf32>) -> tensor<16xf32>
    %cst_140 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %1092 = stablehlo.subtract %1089, %cst_140 : tensor<f32>
    %1093 = call @_where_10(%1090, %1089, %1092) : (tensor<i1>, tensor<f32>, tensor<f32>) -> tensor<f32>
    %1094 = stablehlo.subtract %903, %arg33 : tensor<16xf32>
    %1095 = stablehlo.broadcast_in_dim %1093, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1096 = stablehlo.multiply %1095, %1094 : tensor<16xf32>
    %1097 = stablehlo.add %1091, %1096 : tensor<16xf32>
    %1098 = stablehlo.convert %962 : (tensor<f64>) -> tensor<f32>
    %cst_141 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %1099 = stablehlo.compare LT, %1098, %cst_141, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %1100 = call @_where_12(%1099, %arg34, %905) : (tensor<i1>, tensor<16xf32>, tensor<16xf32>) -> tensor<16xf32>
    %cst_142 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %1101 = stablehlo.subtract %1098, %cst_142 : tensor<f32>
    %1102 = call @_where_10(%1099, %1098, %1101) : (tensor<i1>, tensor<f32>, tensor<f32>) -> tensor<f32>
    %1103 = stablehlo.subtract %905, %arg34 : tensor<16xf32>
    %1104 = stablehlo.broadcast_in_dim %1102, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1105 = stablehlo.multiply %1104, %1103 : tensor<16xf32>
    %1106 = stablehlo.add %1100, %1105 : tensor<16xf32>
    %1107 = stablehlo.convert %962 : (tensor<f64>) -> tensor<f32>
    %cst_143 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %1108 = stablehlo.compare LT, %1107, %cst_143, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %1109 = call @_where_9(%1108, %arg35, %907) : (tensor<i1>, tensor<32x16xf32>, tensor<32x16xf32>) -> tensor<32x16xf32>
    %cst_144 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %1110 = stablehlo.subtract %1107, %cst_144 : tensor<f32>
    %1111 = call @_where_10(%1108, %1107, %1110) : (tensor<i1>, tensor<f32>, tensor<f32>) -> tensor<f32>
    %1112 = stablehlo.subtract %907, %arg35 : tensor<32x16xf32>
    %1113 = stablehlo.broadcast_in_dim %1111, dims = [] : (tensor<f32>) -> tensor<32x16xf32>
    %1114 = stablehlo.multiply %1113, %1112 : tensor<32x16xf32>
    %1115 = stablehlo.add %1109, %1114 : tensor<32x16xf32>
    %1116 = stablehlo.slice %arg53 [5:6] : (tensor<10xf64>) -> tensor<1xf64>
    %1117 = stablehlo.reshape %1116 : (tensor<1xf64>) -> tensor<f64>
    %1118 = stablehlo.convert %1117 : (tensor<f64>) -> tensor<f32>
    %1119 = stablehlo.broadcast_in_dim %1118, dims = [] : (tensor<f32>) -> tensor<32x16xf32>
    %1120 = stablehlo.multiply %arg36, %1119 : tensor<32x16xf32>
    %1121 = stablehlo.convert %1117 : (tensor<f64>) -> tensor<f32>
    %1122 = stablehlo.broadcast_in_dim %1121, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %1123 = stablehlo.multiply %arg37, %1122 : tensor<8x16xf32>
    %1124 = stablehlo.convert %1117 : (tensor<f64>) -> tensor<f32>
    %1125 = stablehlo.broadcast_in_dim %1124, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1126 = stablehlo.multiply %arg38, %1125 : tensor<16xf32>
    %1127 = stablehlo.convert %1117 : (tensor<f64>) -> tensor<f32>
    %1128 = stablehlo.broadcast_in_dim %1127, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1129 = stablehlo.multiply %arg39, %1128 : tensor<16xf32>
    %1130 = stablehlo.convert %1117 : (tensor<f64>) -> tensor<f32>
    %1131 = stablehlo.broadcast_in_dim %1130, dims = [] : (tensor<f32>) -> tensor<48x16xf32>
    %1132 = stablehlo.multiply %arg40, %1131 : tensor<48x16xf32>
    %1133 = stablehlo.convert %1117 : (tensor<f64>) -> tensor<f32>
    %1134 = stablehlo.broadcast_in_dim %1133, dims = [] : (tensor<f32>) -> tensor<48xf32>
    %1135 = stablehlo.multiply %arg41, %1134 : tensor<48xf32>
    %1136 = stablehlo.convert %1117 : (tensor<f64>) -> tensor<f32>
    %1137 = stablehlo.broadcast_in_dim %1136, dims = [] : (tensor<f32>) -> tensor<16x16xf32>
    %1138 = stablehlo.multiply %arg42, %1137 : tensor<16x16xf32>
    %1139 = stablehlo.convert %1117 : (tensor<f64>) -> tensor<f32>
    %1140 = stablehlo.broadcast_in_dim %1139, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1141 = stablehlo.multiply %arg43, %1140 : tensor<16xf32>
    %1142 = stablehlo.convert %1117 : (tensor<f64>) -> tensor<f32>
    %1143 = stablehlo.broadcast_in_dim %1142, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1144 = stablehlo.multiply %arg44, %1143 : tensor<16xf32>
    %1145 = stablehlo.convert %1117 : (tensor<f64>) -> tensor<f32>
    %1146 = stablehlo.broadcast_in_dim %1145, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1147 = stablehlo.multiply %arg45, %1146 : tensor<16xf32>
    %1148 = stablehlo.convert %1117 : (tensor<f64>) -> tensor<f32>
    %1149 = stablehlo.broadcast_in_dim %1148, dims = [] : (tensor<f32>) -> tensor<64x16xf32>
    %1150 = stablehlo.multiply %arg46, %1149 : tensor<64x16xf32>
    %1151 = stablehlo.convert %1117 : (tensor<f64>) -> tensor<f32>
    %1152 = stablehlo.broadcast_in_dim %1151, dims = [] : (tensor<f32>) -> tensor<64xf32>
    %1153 = stablehlo.multiply %arg47, %1152 : tensor<64xf32>
    %1154 = stablehlo.convert %1117 : (tensor<f64>) -> tensor<f32>
    %1155 = stablehlo.broadcast_in_dim %1154, dims = [] : (tensor<f32>) -> tensor<16x64xf32>
    %1156 = stablehlo.multiply %arg48, %1155 : tensor<16x64xf32>
    %1157 = stablehlo.convert %1117 : (tensor<f64>) -> tensor<f32>
    %1158 = stablehlo.broadcast_in_dim %1157, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1159 = stablehlo.multiply %arg49, %1158 : tensor<16xf32>
    %1160 = stablehlo.convert %1117 : (tensor<f64>) -> tensor<f32>
    %1161 = stablehlo.broadcast_in_dim %1160, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1162 = stablehlo.multiply %arg50, %1161 : tensor<16xf32>
    %1163 = stablehlo.convert %1117 : (tensor<f64>) -> tensor<f32>
    %1164 = stablehlo.broadcast_in_dim %1163, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1165 = stablehlo.multiply %arg51, %1164 : tensor<16xf32>
    %1166 = stablehlo.convert %1117 : (tensor<f64>) -> tensor<f32>
    %1167 = stablehlo.broadcast_in_dim %1166, dims = [] : (tensor<f32>) -> tensor<32x16xf32>
    %1168 = stablehlo.multiply %arg52, %1167 : tensor<32x16xf32>
    %1169 = stablehlo.slice %arg53 [6:7] : (tensor<10xf64>) -> tensor<1xf64>
    %1170 = stablehlo.reshape %1169 : (tensor<1xf64>) -> tensor<f64>
    %1171 = stablehlo.convert %1170 : (tensor<f64>) -> tensor<f32>
    %1172 = stablehlo.broadcast_in_dim %1171, dims = [] : (tensor<f32>) -> tensor<32x16xf32>
    %1173 = stablehlo.multiply %1172, %875 : tensor<32x16xf32>
    %1174 = stablehlo.multiply %1173, %875 : tensor<32x16xf32>
    %1175 = stablehlo.add %1120, %1174 : tensor<32x16xf32>
    %1176 = stablehlo.convert %1170 : (tensor<f64>) -> tensor<f32>
    %1177 = stablehlo.broadcast_in_dim %1176, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %1178 = stablehlo.multiply %1177, %877 : tensor<8x16xf32>
    %1179 = stablehlo.multiply %1178, %877 : tensor<8x16xf32>
    %1180 = stablehlo.add %1123, %1179 : tensor<8x16xf32>
    %1181 = stablehlo.convert %1170 : (tensor<f64>) -> tensor<f32>
    %1182 = stablehlo.broadcast_in_dim %1181, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1183 = stablehlo.multiply %1182, %879 : tensor<16xf32>
    %1184 = stablehlo.multiply %1183, %879 : tensor<16xf32>
    %1185 = stablehlo.add %1126, %1184 : tensor<16xf32>
    %1186 = stablehlo.convert %1170 : (tensor<f64>) -> tensor<f32>
    %1187 = stablehlo.broadcast_in_dim %1186, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1188 = stablehlo.multiply %1187, %881 : tensor<16xf32>
    %1189 = stablehlo.multiply %1188, %881 : tensor<16xf32>
    %1190 = stablehlo.add %1129, %1189 : tensor<16xf32>
    %1191 = stablehlo.convert %1170 : (tensor<f64>) -> tensor<f32>
    %1192 = stablehlo.broadcast_in_dim %1191, dims = [] : (tensor<f32>) -> tensor<48x16xf32>
    %1193 = stablehlo.multiply %1192, %883 : tensor<48x16xf32>
    %1194 = stablehlo.multiply %1193, %883 : tensor<48x16xf32>
    %1195 = stablehlo.add %1132, %1194 : tensor<48x16xf32>
    %1196 = stablehlo.convert %1170 : (tensor<f64>) -> tensor<f32>
    %1197 = stablehlo.broadcast_in_dim %1196, dims = [] : (tensor<f32>) -> tensor<48xf32>
    %1198 = stablehlo.multiply %1197, %885 : tensor<48xf32>
    %1199 = stablehlo.multiply %1198, %885 : tensor<48xf32>
    %1200 = stablehlo.add %1135, %1199 : tensor<48xf32>
    %1201 = stablehlo.convert %1170 : (tensor<f64>) -> tensor<f32>
    %1202 = stablehlo.broadcast_in_dim %1201, dims = [] : (tensor<f32>) -> tensor<16x16xf32>
    %1203 = stablehlo.multiply %1202, %887 : tensor<16x16xf32>
    %1204 = stablehlo.multiply %1203, %887 : tensor<16x16xf32>
    %1205 = stablehlo.add %1138, %1204 : tensor<16x16xf32>
    %1206 = stablehlo.convert %1170 : (tensor<f64>) -> tensor<f32>
    %1207 = stablehlo.broadcast_in_dim %1206, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1208 = stablehlo.multiply %1207, %889 : tensor<16xf32>
    %1209 = stablehlo.multiply %1208, %889 : tensor<16xf32>
    %1210 = stablehlo.add %1141, %1209 : tensor<16xf32>
    %1211 = stablehlo.convert %1170 : (tensor<f64>) -> tensor<f32>
    %1212 = stablehlo.broadcast_in_dim %1211, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1213 = stablehlo.multiply %1212, %891 : tensor<16xf32>
    %1214 = stablehlo.multiply %1213, %891 : tensor<16xf32>
    %1215 = stablehlo.add %1144, %1214 : tensor<16xf32>
    %1216 = stablehlo.convert %1170 : (tensor<f64>) -> tensor<f32>
    %1217 = stablehlo.broadcast_in_dim %1216, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1218 = stablehlo.multiply %1217, %893 : tensor<16xf32>
    %1219 = stablehlo.multiply %1218, %893 : tensor<16xf32>
    %1220 = stablehlo.add %1147, %1219 : tensor<16xf32>
    %1221 = stablehlo.convert %1170 : (tensor<f64>) -> tensor<f32>
    %1222 = stablehlo.broadcast_in_dim %1221, dims = [] : (tensor<f32>) -> tensor<64x16xf32>
    %1223 = stablehlo.multiply %1222, %895 : tensor<64x16xf32>
    %1224 = stablehlo.multiply %1223, %895 : tensor<64x16xf32>
    %1225 = stablehlo.add %1150, %1224 : tensor<64x16xf32>
    %1226 = stablehlo.convert %1170 : (tensor<f64>) -> tensor<f32>
    %1227 = stablehlo.broadcast_in_dim %1226, dims = [] : (tensor<f32>) -> tensor<64xf32>
    %1228 = stablehlo.multiply %1227, %897 : tensor<64xf32>
    %1229 = stablehlo.multiply %1228, %897 : tensor<64xf32>
    %1230 = stablehlo.add %1153, %1229 : tensor<64xf32>
    %1231 = stablehlo.convert %1170 : (tensor<f64>) -> tensor<f32>
    %1232 = stablehlo.broadcast_in_dim %1231, dims = [] : (tensor<f32>) -> tensor<16x64xf32>
    %1233 = stablehlo.multiply %1232, %899 : tensor<16x64xf32>
    %1234 = stablehlo.multiply %1233, %899 : tensor<16x64xf32>
    %1235 = stablehlo.add %1156, %1234 : tensor<16x64xf32>
    %1236 = stablehlo.convert %1170 : (tensor<f64>) -> tensor<f32>
    %1237 = stablehlo.broadcast_in_dim %1236, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1238 = stablehlo.multiply %1237, %901 : tensor<16xf32>
    %1239 = stablehlo.multiply %1238, %901 : tensor<16xf32>
    %1240 = stablehlo.add %1159, %1239 : tensor<16xf32>
    %1241 = stablehlo.convert %1170 : (tensor<f64>) -> tensor<f32>
    %1242 = stablehlo.broadcast_in_dim %1241, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1243 = stablehlo.multiply %1242, %903 : tensor<16xf32>
    %1244 = stablehlo.multiply %1243, %903 : tensor<16xf32>
    %1245 = stablehlo.add %1162, %1244 : tensor<16xf32>
    %1246 = stablehlo.convert %1170 : (tensor<f64>) -> tensor<f32>
    %1247 = stablehlo.broadcast_in_dim %1246, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1248 = stablehlo.multiply %1247, %905 : tensor<16xf32>
    %1249 = stablehlo.multiply %1248, %905 : tensor<16xf32>
    %1250 = stablehlo.add %1165, %1249 : tensor<16xf32>
    %1251 = stablehlo.convert %1170 : (tensor<f64>) -> tensor<f32>
    %1252 = stablehlo.broadcast_in_dim %1251, dims = [] : (tensor<f32>) -> tensor<32x16xf32>
    %1253 = stablehlo.multiply %1252, %907 : tensor<32x16xf32>
    %1254 = stablehlo.multiply %1253, %907 : tensor<32x16xf32>
    %1255 = stablehlo.add %1168, %1254 : tensor<32x16xf32>
    %1256 = stablehlo.sqrt %1175 : tensor<32x16xf32>
    %1257 = stablehlo.sqrt %1180 : tensor<8x16xf32>
    %1258 = stablehlo.sqrt %1185 : tensor<16xf32>
    %1259 = stablehlo.sqrt %1190 : tensor<16xf32>
    %1260 = stablehlo.sqrt %1195 : tensor<48x16xf32>
    %1261 = stablehlo.sqrt %1200 : tensor<48xf32>
    %1262 = stablehlo.sqrt %1205 : tensor<16x16xf32>
    %1263 = stablehlo.sqrt %1210 : tensor<16xf32>
    %1264 = stablehlo.sqrt %1215 : tensor<16xf32>
    %1265 = stablehlo.sqrt %1220 : tensor<16xf32>
    %1266 = stablehlo.sqrt %1225 : tensor<64x16xf32>
    %1267 = stablehlo.sqrt %1230 : tensor<64xf32>
    %1268 = stablehlo.sqrt %1235 : tensor<16x64xf32>
    %1269 = stablehlo.sqrt %1240 : tensor<16xf32>
    %1270 = stablehlo.sqrt %1245 : tensor<16xf32>
    %1271 = stablehlo.sqrt %1250 : tensor<16xf32>
    %1272 = stablehlo.sqrt %1255 : tensor<32x16xf32>
    %1273 = stablehlo.slice %arg53 [7:8] : (tensor<10xf64>) -> tensor<1xf64>
    %1274 = stablehlo.reshape %1273 : (tensor<1xf64>) -> tensor<f64>
    %1275 = stablehlo.convert %1274 : (tensor<f64>) -> tensor<f32>
    %1276 = stablehlo.broadcast_in_dim %1275, dims = [] : (tensor<f32>) -> tensor<32x16xf32>
    %1277 = stablehlo.divide %1256, %1276 : tensor<32x16xf32>
    %1278 = stablehlo.convert %1274 : (tensor<f64>) -> tensor<f32>
    %1279 = stablehlo.broadcast_in_dim %1278, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %1280 = stablehlo.divide %1257, %1279 : tensor<8x16xf32>
    %1281 = stablehlo.convert %1274 : (tensor<f64>) -> tensor<f32>
    %1282 = stablehlo.broadcast_in_dim %1281, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1283 = stablehlo.divide %1258, %1282 : tensor<16xf32>
    %1284 = stablehlo.convert %1274 : (tensor<f64>) -> tensor<f32>
    %1285 = stablehlo.broadcast_in_dim %1284, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1286 = stablehlo.divide %1259, %1285 : tensor<16xf32>
    %1287 = stablehlo.convert %1274 : (tensor<f64>) -> tensor<f32>
    %1288 = stablehlo.broadcast_in_dim %1287, dims = [] : (tensor<f32>) -> tensor<48x16xf32>
    %1289 = stablehlo.divide %1260, %1288 : tensor<48x16xf32>
    %1290 = stablehlo.convert %1274 : (tensor<f64>) -> tensor<f32>
    %1291 = stablehlo.broadcast_in_dim %1290, dims = [] : (tensor<f32>) -> tensor<48xf32>
    %1292 = stablehlo.divide %1261, %1291 : tensor<48xf32>
    %1293 = stablehlo.convert %1274 : (tensor<f64>) -> tensor<f32>
    %1294 = stablehlo.broadcast_in_dim %1293, dims = [] : (tensor<f32>) -> tensor<16x16xf32>
    %1295 = stablehlo.divide %1262, %1294 : tensor<16x16xf32>
    %1296 = stablehlo.convert %1274 : (tensor<f64>) -> tensor<f32>
    %1297 = stablehlo.broadcast_in_dim %1296, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1298 = stablehlo.divide %1263, %1297 : tensor<16xf32>
    %1299 = stablehlo.convert %1274 : (tensor<f64>) -> tensor<f32>
    %1300 = stablehlo.broadcast_in_dim %1299, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1301 = stablehlo.divide %1264, %1300 : tensor<16xf32>
    %1302 = stablehlo.convert %1274 : (tensor<f64>) -> tensor<f32>
    %1303 = stablehlo.broadcast_in_dim %1302, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1304 = stablehlo.divide %1265, %1303 : tensor<16xf32>
    %1305 = stablehlo.convert %1274 : (tensor<f64>) -> tensor<f32>
    %1306 = stablehlo.broadcast_in_dim %1305, dims = [] : (tensor<f32>) -> tensor<64x16xf32>
    %1307 = stablehlo.divide %1266, %1306 : tensor<64x16xf32>
    %1308 = stablehlo.convert %1274 : (tensor<f64>) -> tensor<f32>
    %1309 = stablehlo.broadcast_in_dim %1308, dims = [] : (tensor<f32>) -> tensor<64xf32>
    %1310 = stablehlo.divide %1267, %1309 : tensor<64xf32>
    %1311 = stablehlo.convert %1274 : (tensor<f64>) -> tensor<f32>
    %1312 = stablehlo.broadcast_in_dim %1311, dims = [] : (tensor<f32>) -> tensor<16x64xf32>
    %1313 = stablehlo.divide %1268, %1312 : tensor<16x64xf32>
    %1314 = stablehlo.convert %1274 : (tensor<f64>) -> tensor<f32>
    %1315 = stablehlo.broadcast_in_dim %1314, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1316 = stablehlo.divide %1269, %1315 : tensor<16xf32>
    %1317 = stablehlo.convert %1274 : (tensor<f64>) -> tensor<f32>
    %1318 = stablehlo.broadcast_in_dim %1317, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1319 = stablehlo.divide %1270, %1318 : tensor<16xf32>
    %1320 = stablehlo.convert %1274 : (tensor<f64>) -> tensor<f32>
    %1321 = stablehlo.broadcast_in_dim %1320, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1322 = stablehlo.divide %1271, %1321 : tensor<16xf32>
    %1323 = stablehlo.convert %1274 : (tensor<f64>) -> tensor<f32>
    %1324 = stablehlo.broadcast_in_dim %1323, dims = [] : (tensor<f32>) -> tensor<32x16xf32>
    %1325 = stablehlo.divide %1272, %1324 : tensor<32x16xf32>
    %1326 = stablehlo.slice %arg53 [8:9] : (tensor<10xf64>) -> tensor<1xf64>
    %1327 = stablehlo.reshape %1326 : (tensor<1xf64>) -> tensor<f64>
    %1328 = stablehlo.convert %1327 : (tensor<f64>) -> tensor<f32>
    %1329 = stablehlo.broadcast_in_dim %1328, dims = [] : (tensor<f32>) -> tensor<32x16xf32>
    %1330 = stablehlo.add %1277, %1329 : tensor<32x16xf32>
    %1331 = stablehlo.convert %1327 : (tensor<f64>) -> tensor<f32>
    %1332 = stablehlo.broadcast_in_dim %1331, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %1333 = stablehlo.add %1280, %1332 : tensor<8x16xf32>
    %1334 = stablehlo.convert %1327 : (tensor<f64>) -> tensor<f32>
    %1335 = stablehlo.broadcast_in_dim %1334, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1336 = stablehlo.add %1283, %1335 : tensor<16xf32>
    %1337 = stablehlo.convert %1327 : (tensor<f64>) -> tensor<f32>
    %1338 = stablehlo.broadcast_in_dim %1337, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1339 = stablehlo.add %1286, %1338 : tensor<16xf32>
    %1340 = stablehlo.convert %1327 : (tensor<f64>) -> tensor<f32>
    %1341 = stablehlo.broadcast_in_dim %1340, dims = [] : (tensor<f32>) -> tensor<48x16xf32>
    %1342 = stablehlo.add %1289, %1341 : tensor<48x16xf32>
    %1343 = stablehlo.convert %1327 : (tensor<f64>) -> tensor<f32>
    %1344 = stablehlo.broadcast_in_dim %1343, dims = [] : (tensor<f32>) -> tensor<48xf32>
    %1345 = stablehlo.add %1292, %1344 : tensor<48xf32>
    %1346 = stablehlo.convert %1327 : (tensor<f64>) -> tensor<f32>
    %1347 = stablehlo.broadcast_in_dim %1346, dims = [] : (tensor<f32>) -> tensor<16x16xf32>
    %1348 = stablehlo.add %1295, %1347 : tensor<16x16xf32>
    %1349 = stablehlo.convert %1327 : (tensor<f64>) -> tensor<f32>
    %1350 = stablehlo.broadcast_in_dim %1349, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1351 = stablehlo.add %1298, %1350 : tensor<16xf32>
    %1352 = stablehlo.convert %1327 : (tensor<f64>) -> tensor<f32>
    %1353 = stablehlo.broadcast_in_dim %1352, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1354 = stablehlo.add %1301, %1353 : tensor<16xf32>
    %1355 = stablehlo.convert %1327 : (tensor<f64>) -> tensor<f32>
    %1356 = stablehlo.broadcast_in_dim %1355, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1357 = stablehlo.add %1304, %1356 : tensor<16xf32>
    %1358 = stablehlo.convert %1327 : (tensor<f64>) -> tensor<f32>
    %1359 = stablehlo.broadcast_in_dim %1358, dims = [] : (tensor<f32>) -> tensor<64x16xf32>
    %1360 = stablehlo.add %1307, %1359 : tensor<64x16xf32>
    %1361 = stablehlo.convert %1327 : (tensor<f64>) -> tensor<f32>
    %1362 = stablehlo.broadcast_in_dim %1361, dims = [] : (tensor<f32>) -> tensor<64xf32>
    %1363 = stablehlo.add %1310, %1362 : tensor<64xf32>
    %1364 = stablehlo.convert %1327 : (tensor<f64>) -> tensor<f32>
    %1365 = stablehlo.broadcast_in_dim %1364, dims = [] : (tensor<f32>) -> tensor<16x64xf32>
    %1366 = stablehlo.add %1313, %1365 : tensor<16x64xf32>
    %1367 = stablehlo.convert %1327 : (tensor<f64>) -> tensor<f32>
    %1368 = stablehlo.broadcast_in_dim %1367, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1369 = stablehlo.add %1316, %1368 : tensor<16xf32>
    %1370 = stablehlo.convert %1327 : (tensor<f64>) -> tensor<f32>
    %1371 = stablehlo.broadcast_in_dim %1370, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1372 = stablehlo.add %1319, %1371 : tensor<16xf32>
    %1373 = stablehlo.convert %1327 : (tensor<f64>) -> tensor<f32>
    %1374 = stablehlo.broadcast_in_dim %1373, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1375 = stablehlo.add %1322, %1374 : tensor<16xf32>
    %1376 = stablehlo.convert %1327 : (tensor<f64>) -> tensor<f32>
    %1377 = stablehlo.broadcast_in_dim %1376, dims = [] : (tensor<f32>) -> tensor<32x16xf32>
    %1378 = stablehlo.add %1325, %1377 : tensor<32x16xf32>
    %1379 = stablehlo.slice %arg53 [9:10] : (tensor<10xf64>) -> tensor<1xf64>
    %1380 = stablehlo.reshape %1379 : (tensor<1xf64>) -> tensor<f64>
    %1381 = stablehlo.convert %1380 : (tensor<f64>) -> tensor<f32>
    %1382 = stablehlo.broadcast_in_dim %1381, dims = [] : (tensor<f32>) -> tensor<32x16xf32>
    %1383 = stablehlo.multiply %1382, %971 : tensor<32x16xf32>
    %1384 = stablehlo.divide %1383, %1330 : tensor<32x16xf32>
    %1385 = stablehlo.add %912, %1384 : tensor<32x16xf32>
    %1386 = stablehlo.convert %1380 : (tensor<f64>) -> tensor<f32>
    %1387 = stablehlo.broadcast_in_dim %1386, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %1388 = stablehlo.multiply %1387, %980 : tensor<8x16xf32>
    %1389 = stablehlo.divide %1388, %1333 : tensor<8x16xf32>
    %1390 = stablehlo.add %915, %1389 : tensor<8x16xf32>
    %1391 = stablehlo.convert %1380 : (tensor<f64>) -> tensor<f32>
    %1392 = stablehlo.broadcast_in_dim %1391, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1393 = stablehlo.multiply %1392, %989 : tensor<16xf32>
    %1394 = stablehlo.divide %1393, %1336 : tensor<16xf32>
    %1395 = stablehlo.add %918, %1394 : tensor<16xf32>
    %1396 = stablehlo.convert %1380 : (tensor<f64>) -> tensor<f32>
    %1397 = stablehlo.broadcast_in_dim %1396, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1398 = stablehlo.multiply %1397, %998 : tensor<16xf32>
    %1399 = stablehlo.divide %1398, %1339 : tensor<16xf32>
    %1400 = stablehlo.add %921, %1399 : tensor<16xf32>
    %1401 = stablehlo.convert %1380 : (tensor<f64>) -> tensor<f32>
    %1402 = stablehlo.broadcast_in_dim %1401, dims = [] : (tensor<f32>) -> tensor<48x16xf32>
    %1403 = stablehlo.multiply %1402, %1007 : tensor<48x16xf32>
    %1404 = stablehlo.divide %1403, %1342 : tensor<48x16xf32>
    %1405 = stablehlo.add %924, %1404 : tensor<48x16xf32>
    %1406 = stablehlo.convert %1380 : (tensor<f64>) -> tensor<f32>
    %1407 = stablehlo.broadcast_in_dim %1406, dims = [] : (tensor<f32>) -> tensor<48xf32>
    %1408 = stablehlo.multiply %1407, %1016 : tensor<48xf32>
    %1409 = stablehlo.divide %1408, %1345 : tensor<48xf32>
    %1410 = stablehlo.add %927, %1409 : tensor<48xf32>
    %1411 = stablehlo.convert %1380 : (tensor<f64>) -> tensor<f32>
    %1412 = stablehlo.broadcast_in_dim %1411, dims = [] : (tensor<f32>) -> tensor<16x16xf32>
    %1413 = stablehlo.multiply %1412, %1025 : tensor<16x16xf32>
    %1414 = stablehlo.divide %1413, %1348 : tensor<16x16xf32>
    %1415 = stablehlo.add %930, %1414 : tensor<16x16xf32>
    %1416 = stablehlo.convert %1380 : (tensor<f64>) -> tensor<f32>
    %1417 = stablehlo.broadcast_in_dim %1416, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1418 = stablehlo.multiply %1417, %1034 : tensor<16xf32>
    %1419 = stablehlo.divide %1418, %1351 : tensor<16xf32>
    %1420 = stablehlo.add %933, %1419 : tensor<16xf32>
    %1421 = stablehlo.convert %1380 : (tensor<f64>) -> tensor<f32>
    %1422 = stablehlo.broadcast_in_dim %1421, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1423 = stablehlo.multiply %1422, %1043 : tensor<16xf32>
    %1424 = stablehlo.divide %1423, %1354 : tensor<16xf32>
    %1425 = stablehlo.add %936, %1424 : tensor<16xf32>
    %1426 = stablehlo.convert %1380 : (tensor<f64>) -> tensor<f32>
    %1427 = stablehlo.broadcast_in_dim %1426, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1428 = stablehlo.multiply %1427, %1052 : tensor<16xf32>
    %1429 = stablehlo.divide %1428, %1357 : tensor<16xf32>
    %1430 = stablehlo.add %939, %1429 : tensor<16xf32>
    %1431 = stablehlo.convert %1380 : (tensor<f64>) -> tensor<f32>
    %1432 = stablehlo.broadcast_in_dim %1431, dims = [] : (tensor<f32>) -> tensor<64x16xf32>
    %1433 = stablehlo.multiply %1432, %1061 : tensor<64x16xf32>
    %1434 = stablehlo.divide %1433, %1360 : tensor<64x16xf32>
    %1435 = stablehlo.add %942, %1434 : tensor<64x16xf32>
    %1436 = stablehlo.convert %1380 : (tensor<f64>) -> tensor<f32>
    %1437 = stablehlo.broadcast_in_dim %1436, dims = [] : (tensor<f32>) -> tensor<64xf32>
    %1438 = stablehlo.multiply %1437, %1070 : tensor<64xf32>
    %1439 = stablehlo.divide %1438, %1363 : tensor<64xf32>
    %1440 = stablehlo.add %945, %1439 : tensor<64xf32>
    %1441 = stablehlo.convert %1380 : (tensor<f64>) -> tensor<f32>
    %1442 = stablehlo.broadcast_in_dim %1441, dims = [] : (tensor<f32>) -> tensor<16x64xf32>
    %1443 = stablehlo.multiply %1442, %1079 : tensor<16x64xf32>
    %1444 = stablehlo.divide %1443, %1366 : tensor<16x64xf32>
    %1445 = stablehlo.add %948, %1444 : tensor<16x64xf32>
    %1446 = stablehlo.convert %1380 : (tensor<f64>) -> tensor<f32>
    %1447 = stablehlo.broadcast_in_dim %1446, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1448 = stablehlo.multiply %1447, %1088 : tensor<16xf32>
    %1449 = stablehlo.divide %1448, %1369 : tensor<16xf32>
    %1450 = stablehlo.add %951, %1449 : tensor<16xf32>
    %1451 = stablehlo.convert %1380 : (tensor<f64>) -> tensor<f32>
    %1452 = stablehlo.broadcast_in_dim %1451, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1453 = stablehlo.multiply %1452, %1097 : tensor<16xf32>
    %1454 = stablehlo.divide %1453, %1372 : tensor<16xf32>
    %1455 = stablehlo.add %954, %1454 : tensor<16xf32>
    %1456 = stablehlo.convert %1380 : (tensor<f64>) -> tensor<f32>
    %1457 = stablehlo.broadcast_in_dim %1456, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %1458 = stablehlo.multiply %1457, %1106 : tensor<16xf32>
    %1459 = stablehlo.divide %1458, %1375 : tensor<16xf32>
    %1460 = stablehlo.add %957, %1459 : tensor<16xf32>
    %1461 = stablehlo.convert %1380 : (tensor<f64>) -> tensor<f32>
    %1462 = stablehlo.broadcast_in_dim %1461, dims = [] : (tensor<f32>) -> tensor<32x16xf32>
    %1463 = stablehlo.multiply %1462, %1115 : tensor<32x16xf32>
    %1464 = stablehlo.divide %1463, %1378 : tensor<32x16xf32>
    %1465 = stablehlo.add %960, %1464 : tensor<32x16xf32>
    return %338, %971, %980, %989, %998, %1007, %1016, %1025, %1034, %1043, %1052, %1061, %1070, %1079, %1088, %1097, %1106, %1115, %1175, %1180, %1185, %1190, %1195, %1200, %1205, %1210, %1215, %1220, %1225, %1230, %1235, %1240, %1245, %1250, %1255, %1385, %1390, %1395, %1400, %1405, %1410, %1415, %1420, %1425, %1430, %1435, %1440, %1445, %1450, %1455, %1460, %1465 : tensor<f32>, tensor<32x16xf32>, tensor<8x16xf32>, tensor<16xf32>, tensor<16xf32>, tensor<48x16xf32>, tensor<48xf32>, tensor<16x16xf32>, tensor<16xf32>, tensor<16xf32>, tensor<16xf32>, tensor<64x16xf32>, tensor<64xf32>, tensor<16x64xf32>, tensor<16xf32>, tensor<16xf32>, tensor<16xf32>, tensor<32x16xf32>, tensor<32x16xf32>, tensor<8x16xf32>, tensor<16xf32>, tensor<16xf32>, tensor<48x16xf32>, tensor<48xf32>, tensor<16x16xf32>, tensor<16xf32>, tensor<16xf32>, tensor<16xf32>, tensor<64x16xf32>, tensor<64xf32>, tensor<16x64xf32>, tensor<16xf32>, tensor<16xf32>, tensor<16xf32>, tensor<32x16xf32>, tensor<32x16xf32>, tensor<8x16xf32>, tensor<16xf32>, tensor<16xf32>, tensor<48x16xf32>, tensor<48xf32>, tensor<16x16xf32>, tensor<16xf32>, tensor<16xf32>, tensor<16xf32>, tensor<64x16xf32>, tensor<64xf32>, tensor<16x64xf32>, tensor<16xf32>, tensor<16xf32>, tensor<16xf32>, tensor<32x16xf32>
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

// torch 2.13.0, jax 0.10.2, transformers 5.23.0
module @jit_spmd attributes {mhlo.num_partitions = 8 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<8x8xf32> {mhlo.sharding = "{devices=[8,1]<=[8]}", tf.aliasing_output = 0 : i32},
    %arg1: tensor<8x8xf32> {mhlo.sharding = "{devices=[4,2]0,3,1,2,7,5,6,4}", tf.aliasing_output = 1 : i32},
    %arg2: tensor<2xf64>,
    %arg3: tensor<0xi64>) -> (
    tensor<8x8xf32> {jax.result_info = "result[0]", mhlo.sharding = "{devices=[8,1]<=[8]}"},
    tensor<8x8xf32> {jax.result_info = "result[1]", mhlo.sharding = "{devices=[4,2]0,3,1,2,7,5,6,4}"},
    tensor<8x8xf32> {jax.result_info = "result[2]", mhlo.sharding = "{devices=[1,8]0,1,7,6,3,2,5,4}"}) {
    %0 = stablehlo.slice %arg2 [0:1] : (tensor<2xf64>) -> tensor<1xf64>
    %1 = stablehlo.reshape %0 : (tensor<1xf64>) -> tensor<f64>
    %2 = stablehlo.convert %1 : (tensor<f64>) -> tensor<f32>
    %3 = stablehlo.broadcast_in_dim %2, dims = [] : (tensor<f32>) -> tensor<8x8xf32>
    %4 = stablehlo.multiply %arg0, %3 : tensor<8x8xf32>
    %5 = stablehlo.transpose %arg1, dims = [1, 0] : (tensor<8x8xf32>) -> tensor<8x8xf32>
    %6 = stablehlo.add %4, %5 : tensor<8x8xf32>
    %7 = call @_flip(%6) : (tensor<8x8xf32>) -> tensor<8x8xf32>
    %8 = stablehlo.custom_call @Sharding(%7) {backend_config = "", mhlo.sharding = "{devices=[2,1,4]0,1,6,7,2,3,4,5 last_tile_dim_replicate}"} : (tensor<8x8xf32>) -> tensor<8x8xf32>
    %9 = stablehlo.slice %arg2 [1:2] : (tensor<2xf64>) -> tensor<1xf64>
    %10 = stablehlo.reshape %9 : (tensor<1xf64>) -> tensor<f64>
    %11 = stablehlo.convert %10 : (tensor<f64>) -> tensor<f32>
    %12 = stablehlo.broadcast_in_dim %11, dims = [] : (tensor<f32>) -> tensor<8x8xf32>
    %13 = stablehlo.multiply %8, %12 : tensor<8x8xf32>
    %14 = stablehlo.add %arg1, %13 : tensor<8x8xf32>
    %15 = stablehlo.dot_general %6, %14, contracting_dims = [1] x [0], precision = [HIGHEST, HIGHEST] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
    %16 = stablehlo.custom_call @Sharding(%15) {backend_config = "", mhlo.sharding = "{devices=[1,8]0,1,7,6,3,2,5,4}"} : (tensor<8x8xf32>) -> tensor<8x8xf32>
    return %6, %14, %16 : tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>
  }
  func.func private @_flip(%arg0: tensor<8x8xf32>) -> tensor<8x8xf32> {
    %0 = stablehlo.reverse %arg0, dims = [0] : tensor<8x8xf32>
    return %0 : tensor<8x8xf32>
  }
}

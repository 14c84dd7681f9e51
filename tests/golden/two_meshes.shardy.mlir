// torch 2.13.0, jax 0.10.2, transformers 5.23.0
module @jit_spmd attributes {mhlo.num_partitions = 8 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["factor0"=2, "factor1"=2, "factor2"=2]> {stablehlo.mesh = {axes = [{name = "factor0", size = 2 : i64}, {name = "factor1", size = 2 : i64}, {name = "factor2", size = 2 : i64}]}}
  sdy.mesh @mesh_0 = <["factor0"=2, "factor1"=2, "factor2"=2], device_ids=[0, 3, 1, 2, 7, 5, 6, 4]> {stablehlo.mesh = {axes = [{name = "factor0", size = 2 : i64}, {name = "factor1", size = 2 : i64}, {name = "factor2", size = 2 : i64}], device_ids = dense<[0, 3, 1, 2, 7, 5, 6, 4]> : tensor<8xi64>}}
  func.func public @main(%arg0: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"factor0", "factor1", "factor2"}, {}]>, tf.aliasing_output = 0 : i32},
    %arg1: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh_0, [{"factor0", "factor1"}, {"factor2"}]>, tf.aliasing_output = 1 : i32},
    %arg2: tensor<2xf64>,
    %arg3: tensor<0xi64>) -> (
    tensor<8x8xf32> {jax.result_info = "result[0]", sdy.sharding = #sdy.sharding<@mesh, [{"factor0", "factor1", "factor2"}, {}]>},
    tensor<8x8xf32> {jax.result_info = "result[1]", sdy.sharding = #sdy.sharding<@mesh_0, [{"factor0", "factor1"}, {"factor2"}]>},
    tensor<8x8xf32> {jax.result_info = "result[2]", sdy.sharding = #sdy.sharding<@mesh_0, [{}, {"factor2", "factor0", "factor1"}]>}) {
    %0 = stablehlo.slice %arg2 [0:1] : (tensor<2xf64>) -> tensor<1xf64>
    %1 = stablehlo.reshape %0 : (tensor<1xf64>) -> tensor<f64>
    %2 = stablehlo.convert %1 : (tensor<f64>) -> tensor<f32>
    %3 = stablehlo.broadcast_in_dim %2, dims = [] : (tensor<f32>) -> tensor<8x8xf32>
    %4 = stablehlo.multiply %arg0, %3 : tensor<8x8xf32>
    %5 = stablehlo.transpose %arg1, dims = [1, 0] : (tensor<8x8xf32>) -> tensor<8x8xf32>
    %6 = stablehlo.add %4, %5 : tensor<8x8xf32>
    %7 = call @_flip(%6) : (tensor<8x8xf32>) -> tensor<8x8xf32>
    %8 = sdy.sharding_constraint %7 <@mesh_0, [{"factor2"}, {}]> : tensor<8x8xf32>
    %9 = stablehlo.slice %arg2 [1:2] : (tensor<2xf64>) -> tensor<1xf64>
    %10 = stablehlo.reshape %9 : (tensor<1xf64>) -> tensor<f64>
    %11 = stablehlo.convert %10 : (tensor<f64>) -> tensor<f32>
    %12 = stablehlo.broadcast_in_dim %11, dims = [] : (tensor<f32>) -> tensor<8x8xf32>
    %13 = stablehlo.multiply %8, %12 : tensor<8x8xf32>
    %14 = stablehlo.add %arg1, %13 : tensor<8x8xf32>
    %15 = stablehlo.dot_general %6, %14, contracting_dims = [1] x [0], precision = [HIGHEST, HIGHEST] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
    %16 = sdy.sharding_constraint %15 <@mesh_0, [{}, {"factor2", "factor0", "factor1"}]> : tensor<8x8xf32>
    return %6, %14, %16 : tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>
  }
  func.func private @_flip(%arg0: tensor<8x8xf32>) -> tensor<8x8xf32> {
    %0 = stablehlo.reverse %arg0, dims = [0] : tensor<8x8xf32>
    return %0 : tensor<8x8xf32>
  }
}

// torch 2.13.0, jax 0.10.2, transformers 5.23.0
module @jit_spmd attributes {mhlo.num_partitions = 8 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["data"=2, "model"=4]> {stablehlo.mesh = {axes = [{name = "data", size = 2 : i64}, {name = "model", size = 4 : i64}]}}
  func.func public @main(%arg0: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>},
    %arg1: tensor<4x8x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}, {}]>},
    %arg2: tensor<32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>},
    %arg3: tensor<32x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"model"}, {}]>},
    %arg4: tensor<32x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"model"}, {}]>},
    %arg5: tensor<32x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"model"}, {}]>},
    %arg6: tensor<32x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"model"}]>},
    %arg7: tensor<32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>},
    %arg8: tensor<64x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"model"}, {}]>},
    %arg9: tensor<64x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"model"}, {}]>},
    %arg10: tensor<32x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"model"}]>},
    %arg11: tensor<9xf64>,
    %arg12: tensor<5xi64>) -> (
    tensor<32x64xf32> {jax.result_info = "result[0]", sdy.sharding = #sdy.sharding<@mesh, [{}, {"model"}]>},
    tensor<64x32xf32> {jax.result_info = "result[1]", sdy.sharding = #sdy.sharding<@mesh, [{"model"}, {}]>},
    tensor<64x32xf32> {jax.result_info = "result[2]", sdy.sharding = #sdy.sharding<@mesh, [{"model"}, {}]>},
    tensor<1x1x32xf32> {jax.result_info = "result[3]"},
    tensor<32x32xf32> {jax.result_info = "result[4]", sdy.sharding = #sdy.sharding<@mesh, [{}, {"model"}]>},
    tensor<32x32xf32> {jax.result_info = "result[5]", sdy.sharding = #sdy.sharding<@mesh, [{"model"}, {}]>},
    tensor<32x32xf32> {jax.result_info = "result[6]", sdy.sharding = #sdy.sharding<@mesh, [{"model"}, {}]>},
    tensor<32x32xf32> {jax.result_info = "result[7]", sdy.sharding = #sdy.sharding<@mesh, [{"model"}, {}]>},
    tensor<1x1x32xf32> {jax.result_info = "result[8]"},
    tensor<4x8x32xf32> {jax.result_info = "result[9]"}) {
    %0 = stablehlo.iota dim = 0 : tensor<8xi64>
    %c = stablehlo.constant dense<1> : tensor<i64>
    %1 = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<i64>) -> tensor<8xi64>
    %2 = stablehlo.multiply %0, %1 : tensor<8xi64>
    %c_0 = stablehlo.constant dense<0> : tensor<i64>
    %3 = stablehlo.broadcast_in_dim %c_0, dims = [] : (tensor<i64>) -> tensor<8xi64>
    %4 = stablehlo.add %3, %2 : tensor<8xi64>
    %5 = stablehlo.reshape %4 : (tensor<8xi64>) -> tensor<1x8xi64>
    %6 = stablehlo.reshape %5 : (tensor<1x8xi64>) -> tensor<1x8x1xi64>
    %7 = stablehlo.convert %6 : (tensor<1x8x1xi64>) -> tensor<1x8x1xf32>
    %8 = stablehlo.broadcast_in_dim %arg0, dims = [2] : (tensor<4xf32>) -> tensor<1x1x4xf32>
    %9 = stablehlo.broadcast_in_dim %7, dims = [0, 1, 2] : (tensor<1x8x1xf32>) -> tensor<1x8x4xf32>
    %10 = stablehlo.broadcast_in_dim %8, dims = [0, 1, 2] : (tensor<1x1x4xf32>) -> tensor<1x8x4xf32>
    %11 = stablehlo.multiply %9, %10 : tensor<1x8x4xf32>
    %12 = stablehlo.concatenate %11, %11, dim = 2 : (tensor<1x8x4xf32>, tensor<1x8x4xf32>) -> tensor<1x8x8xf32>
    %13 = stablehlo.cosine %12 : tensor<1x8x8xf32>
    %14 = stablehlo.slice %arg11 [0:1] : (tensor<9xf64>) -> tensor<1xf64>
    %15 = stablehlo.reshape %14 : (tensor<1xf64>) -> tensor<f64>
    %16 = stablehlo.convert %15 : (tensor<f64>) -> tensor<f32>
    %17 = stablehlo.broadcast_in_dim %16, dims = [] : (tensor<f32>) -> tensor<1x8x8xf32>
    %18 = stablehlo.multiply %13, %17 : tensor<1x8x8xf32>
    %19 = stablehlo.sine %12 : tensor<1x8x8xf32>
    %20 = stablehlo.slice %arg11 [1:2] : (tensor<9xf64>) -> tensor<1xf64>
    %21 = stablehlo.reshape %20 : (tensor<1xf64>) -> tensor<f64>
    %22 = stablehlo.convert %21 : (tensor<f64>) -> tensor<f32>
    %23 = stablehlo.broadcast_in_dim %22, dims = [] : (tensor<f32>) -> tensor<1x8x8xf32>
    %24 = stablehlo.multiply %19, %23 : tensor<1x8x8xf32>
    %25 = stablehlo.multiply %arg1, %arg1 : tensor<4x8x32xf32>
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %26 = stablehlo.reduce(%25 init: %cst) applies stablehlo.add across dimensions = [2] : (tensor<4x8x32xf32>, tensor<f32>) -> tensor<4x8xf32>
    %27 = stablehlo.broadcast_in_dim %26, dims = [0, 1] : (tensor<4x8xf32>) -> tensor<4x8x1xf32>
    %cst_1 = stablehlo.constant dense<3.200000e+01> : tensor<f32>
    %28 = stablehlo.broadcast_in_dim %cst_1, dims = [] : (tensor<f32>) -> tensor<4x8x1xf32>
    %29 = stablehlo.divide %27, %28 : tensor<4x8x1xf32>
    %30 = stablehlo.slice %arg11 [2:3] : (tensor<9xf64>) -> tensor<1xf64>
    %31 = stablehlo.reshape %30 : (tensor<1xf64>) -> tensor<f64>
    %32 = stablehlo.convert %31 : (tensor<f64>) -> tensor<f32>
    %33 = stablehlo.broadcast_in_dim %32, dims = [] : (tensor<f32>) -> tensor<4x8x1xf32>
    %34 = stablehlo.add %29, %33 : tensor<4x8x1xf32>
    %35 = stablehlo.rsqrt %34 : tensor<4x8x1xf32>
    %36 = stablehlo.broadcast_in_dim %35, dims = [0, 1, 2] : (tensor<4x8x1xf32>) -> tensor<4x8x32xf32>
    %37 = stablehlo.multiply %arg1, %36 : tensor<4x8x32xf32>
    %38 = stablehlo.broadcast_in_dim %arg2, dims = [2] : (tensor<32xf32>) -> tensor<1x1x32xf32>
    %39 = stablehlo.broadcast_in_dim %38, dims = [0, 1, 2] : (tensor<1x1x32xf32>) -> tensor<4x8x32xf32>
    %40 = stablehlo.multiply %39, %37 : tensor<4x8x32xf32>
    %41 = stablehlo.reshape %40 : (tensor<4x8x32xf32>) -> tensor<32x32xf32>
    %42 = call @atleast_2d(%arg3) : (tensor<32x32xf32>) -> tensor<32x32xf32>
    %43 = stablehlo.transpose %42, dims = [1, 0] : (tensor<32x32xf32>) -> tensor<32x32xf32>
    %44 = stablehlo.dot_general %41, %43, contracting_dims = [1] x [0], precision = [HIGHEST, HIGHEST] : (tensor<32x32xf32>, tensor<32x32xf32>) -> tensor<32x32xf32>
    %45 = stablehlo.reshape %44 : (tensor<32x32xf32>) -> tensor<4x8x32xf32>
    %46 = stablehlo.reshape %40 : (tensor<4x8x32xf32>) -> tensor<32x32xf32>
    %47 = call @atleast_2d(%arg4) : (tensor<32x32xf32>) -> tensor<32x32xf32>
    %48 = stablehlo.transpose %47, dims = [1, 0] : (tensor<32x32xf32>) -> tensor<32x32xf32>
    %49 = stablehlo.dot_general %46, %48, contracting_dims = [1] x [0], precision = [HIGHEST, HIGHEST] : (tensor<32x32xf32>, tensor<32x32xf32>) -> tensor<32x32xf32>
    %50 = stablehlo.reshape %49 : (tensor<32x32xf32>) -> tensor<4x8x32xf32>
    %51 = stablehlo.reshape %40 : (tensor<4x8x32xf32>) -> tensor<32x32xf32>
    %52 = call @atleast_2d(%arg5) : (tensor<32x32xf32>) -> tensor<32x32xf32>
    %53 = stablehlo.transpose %52, dims = [1, 0] : (tensor<32x32xf32>) -> tensor<32x32xf32>
    %54 = stablehlo.dot_general %51, %53, contracting_dims = [1] x [0], precision = [HIGHEST, HIGHEST] : (tensor<32x32xf32>, tensor<32x32xf32>) -> tensor<32x32xf32>
    %55 = stablehlo.reshape %54 : (tensor<32x32xf32>) -> tensor<4x8x32xf32>
    %56 = stablehlo.reshape %45 : (tensor<4x8x32xf32>) -> tensor<4x8x4x8xf32>
    %57 = stablehlo.transpose %56, dims = [0, 2, 1, 3] : (tensor<4x8x4x8xf32>) -> tensor<4x4x8x8xf32>
    %58 = stablehlo.reshape %18 : (tensor<1x8x8xf32>) -> tensor<1x1x8x8xf32>
    %59 = stablehlo.broadcast_in_dim %58, dims = [0, 1, 2, 3] : (tensor<1x1x8x8xf32>) -> tensor<4x4x8x8xf32>
    %60 = stablehlo.multiply %57, %59 : tensor<4x4x8x8xf32>
    %61 = stablehlo.slice %57 [0:4, 0:4, 0:8, 4:8] : (tensor<4x4x8x8xf32>) -> tensor<4x4x8x4xf32>
    %62 = stablehlo.negate %61 : tensor<4x4x8x4xf32>
    %63 = stablehlo.slice %57 [0:4, 0:4, 0:8, 0:4] : (tensor<4x4x8x8xf32>) -> tensor<4x4x8x4xf32>
    %64 = stablehlo.concatenate %62, %63, dim = 3 : (tensor<4x4x8x4xf32>, tensor<4x4x8x4xf32>) -> tensor<4x4x8x8xf32>
    %65 = stablehlo.reshape %24 : (tensor<1x8x8xf32>) -> tensor<1x1x8x8xf32>
    %66 = stablehlo.broadcast_in_dim %65, dims = [0, 1, 2, 3] : (tensor<1x1x8x8xf32>) -> tensor<4x4x8x8xf32>
    %67 = stablehlo.multiply %64, %66 : tensor<4x4x8x8xf32>
    %68 = stablehlo.add %60, %67 : tensor<4x4x8x8xf32>
    %69 = stablehlo.reshape %50 : (tensor<4x8x32xf32>) -> tensor<4x8x4x8xf32>
    %70 = stablehlo.transpose %69, dims = [0, 2, 1, 3] : (tensor<4x8x4x8xf32>) -> tensor<4x4x8x8xf32>
    %71 = stablehlo.broadcast_in_dim %58, dims = [0, 1, 2, 3] : (tensor<1x1x8x8xf32>) -> tensor<4x4x8x8xf32>
    %72 = stablehlo.multiply %70, %71 : tensor<4x4x8x8xf32>
    %73 = stablehlo.slice %70 [0:4, 0:4, 0:8, 4:8] : (tensor<4x4x8x8xf32>) -> tensor<4x4x8x4xf32>
    %74 = stablehlo.negate %73 : tensor<4x4x8x4xf32>
    %75 = stablehlo.slice %70 [0:4, 0:4, 0:8, 0:4] : (tensor<4x4x8x8xf32>) -> tensor<4x4x8x4xf32>
    %76 = stablehlo.concatenate %74, %75, dim = 3 : (tensor<4x4x8x4xf32>, tensor<4x4x8x4xf32>) -> tensor<4x4x8x8xf32>
    %77 = stablehlo.broadcast_in_dim %65, dims = [0, 1, 2, 3] : (tensor<1x1x8x8xf32>) -> tensor<4x4x8x8xf32>
    %78 = stablehlo.multiply %76, %77 : tensor<4x4x8x8xf32>
    %79 = stablehlo.add %72, %78 : tensor<4x4x8x8xf32>
    %80 = stablehlo.reshape %55 : (tensor<4x8x32xf32>) -> tensor<4x8x4x8xf32>
    %81 = stablehlo.transpose %80, dims = [0, 2, 1, 3] : (tensor<4x8x4x8xf32>) -> tensor<4x4x8x8xf32>
    %82 = stablehlo.slice %arg12 [0:1] : (tensor<5xi64>) -> tensor<1xi64>
    %83 = stablehlo.reshape %82 : (tensor<1xi64>) -> tensor<i64>
    %84 = stablehlo.slice %arg12 [1:2] : (tensor<5xi64>) -> tensor<1xi64>
    %85 = stablehlo.reshape %84 : (tensor<1xi64>) -> tensor<i64>
    %86 = stablehlo.dot_general %68, %79, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [3], precision = [HIGHEST, HIGHEST] : (tensor<4x4x8x8xf32>, tensor<4x4x8x8xf32>) -> tensor<4x4x8x8xf32>
    %cst_2 = stablehlo.constant dense<0.353553385> : tensor<f32>
    %87 = stablehlo.broadcast_in_dim %cst_2, dims = [] : (tensor<f32>) -> tensor<4x4x8x8xf32>
    %88 = stablehlo.multiply %86, %87 : tensor<4x4x8x8xf32>
    %89 = stablehlo.iota dim = 0 : tensor<8x8xi32>
    %90 = stablehlo.iota dim = 1 : tensor<8x8xi32>
    %91 = stablehlo.compare LE, %90, %89, SIGNED : (tensor<8x8xi32>, tensor<8x8xi32>) -> tensor<8x8xi1>
    %cst_3 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %92 = call @_where(%91, %88, %cst_3) : (tensor<8x8xi1>, tensor<4x4x8x8xf32>, tensor<f32>) -> tensor<4x4x8x8xf32>
    %cst_4 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %93 = stablehlo.reduce(%92 init: %cst_4) applies stablehlo.maximum across dimensions = [3] : (tensor<4x4x8x8xf32>, tensor<f32>) -> tensor<4x4x8xf32>
    %94 = stablehlo.broadcast_in_dim %93, dims = [0, 1, 2] : (tensor<4x4x8xf32>) -> tensor<4x4x8x1xf32>
    %95 = stablehlo.broadcast_in_dim %94, dims = [0, 1, 2, 3] : (tensor<4x4x8x1xf32>) -> tensor<4x4x8x8xf32>
    %96 = stablehlo.subtract %92, %95 : tensor<4x4x8x8xf32>
    %97 = stablehlo.exponential %96 : tensor<4x4x8x8xf32>
    %cst_5 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %98 = stablehlo.reduce(%97 init: %cst_5) applies stablehlo.add across dimensions = [3] : (tensor<4x4x8x8xf32>, tensor<f32>) -> tensor<4x4x8xf32>
    %99 = stablehlo.broadcast_in_dim %98, dims = [0, 1, 2] : (tensor<4x4x8xf32>) -> tensor<4x4x8x1xf32>
    %100 = stablehlo.log %99 : tensor<4x4x8x1xf32>
    %101 = stablehlo.add %94, %100 : tensor<4x4x8x1xf32>
    %102 = stablehlo.reshape %101 : (tensor<4x4x8x1xf32>) -> tensor<4x4x8xf32>
    %103 = stablehlo.broadcast_in_dim %99, dims = [0, 1, 2, 3] : (tensor<4x4x8x1xf32>) -> tensor<4x4x8x8xf32>
    %104 = stablehlo.divide %97, %103 : tensor<4x4x8x8xf32>
    %105 = stablehlo.dot_general %104, %81, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [2], precision = [HIGHEST, HIGHEST] : (tensor<4x4x8x8xf32>, tensor<4x4x8x8xf32>) -> tensor<4x4x8x8xf32>
    %106 = stablehlo.broadcast_in_dim %83, dims = [] : (tensor<i64>) -> tensor<1xi64>
    %107 = stablehlo.broadcast_in_dim %85, dims = [] : (tensor<i64>) -> tensor<1xi64>
    %108 = stablehlo.concatenate %106, %107, dim = 0 : (tensor<1xi64>, tensor<1xi64>) -> tensor<2xi64>
    %109 = stablehlo.transpose %105, dims = [0, 2, 1, 3] : (tensor<4x4x8x8xf32>) -> tensor<4x8x4x8xf32>
    %110 = stablehlo.reshape %109 : (tensor<4x8x4x8xf32>) -> tensor<4x8x32xf32>
    %111 = stablehlo.reshape %110 : (tensor<4x8x32xf32>) -> tensor<32x32xf32>
    %112 = call @atleast_2d(%arg6) : (tensor<32x32xf32>) -> tensor<32x32xf32>
    %113 = stablehlo.transpose %112, dims = [1, 0] : (tensor<32x32xf32>) -> tensor<32x32xf32>
    %114 = stablehlo.dot_general %111, %113, contracting_dims = [1] x [0], precision = [HIGHEST, HIGHEST] : (tensor<32x32xf32>, tensor<32x32xf32>) -> tensor<32x32xf32>
    %115 = stablehlo.reshape %114 : (tensor<32x32xf32>) -> tensor<4x8x32xf32>
    %116 = stablehlo.add %arg1, %115 : tensor<4x8x32xf32>
    %117 = stablehlo.multiply %116, %116 : tensor<4x8x32xf32>
    %cst_6 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %118 = stablehlo.reduce(%117 init: %cst_6) applies stablehlo.add across dimensions = [2] : (tensor<4x8x32xf32>, tensor<f32>) -> tensor<4x8xf32>
    %119 = stablehlo.broadcast_in_dim %118, dims = [0, 1] : (tensor<4x8xf32>) -> tensor<4x8x1xf32>
    %cst_7 = stablehlo.constant dense<3.200000e+01> : tensor<f32>
    %120 = stablehlo.broadcast_in_dim %cst_7, dims = [] : (tensor<f32>) -> tensor<4x8x1xf32>
    %121 = stablehlo.divide %119, %120 : tensor<4x8x1xf32>
    %122 = stablehlo.slice %arg11 [3:4] : (tensor<9xf64>) -> tensor<1xf64>
    %123 = stablehlo.reshape %122 : (tensor<1xf64>) -> tensor<f64>
    %124 = stablehlo.convert %123 : (tensor<f64>) -> tensor<f32>
    %125 = stablehlo.broadcast_in_dim %124, dims = [] : (tensor<f32>) -> tensor<4x8x1xf32>
    %126 = stablehlo.add %121, %125 : tensor<4x8x1xf32>
    %127 = stablehlo.rsqrt %126 : tensor<4x8x1xf32>
    %128 = stablehlo.broadcast_in_dim %127, dims = [0, 1, 2] : (tensor<4x8x1xf32>) -> tensor<4x8x32xf32>
    %129 = stablehlo.multiply %116, %128 : tensor<4x8x32xf32>
    %130 = stablehlo.broadcast_in_dim %arg7, dims = [2] : (tensor<32xf32>) -> tensor<1x1x32xf32>
    %131 = stablehlo.broadcast_in_dim %130, dims = [0, 1, 2] : (tensor<1x1x32xf32>) -> tensor<4x8x32xf32>
    %132 = stablehlo.multiply %131, %129 : tensor<4x8x32xf32>
    %133 = stablehlo.reshape %132 : (tensor<4x8x32xf32>) -> tensor<32x32xf32>
    %134 = call @atleast_2d_0(%arg8) : (tensor<64x32xf32>) -> tensor<64x32xf32>
    %135 = stablehlo.transpose %134, dims = [1, 0] : (tensor<64x32xf32>) -> tensor<32x64xf32>
    %136 = stablehlo.dot_general %133, %135, contracting_dims = [1] x [0], precision = [HIGHEST, HIGHEST] : (tensor<32x32xf32>, tensor<32x64xf32>) -> tensor<32x64xf32>
    %137 = stablehlo.reshape %136 : (tensor<32x64xf32>) -> tensor<4x8x64xf32>
    %138 = stablehlo.negate %137 : tensor<4x8x64xf32>
    %139 = stablehlo.exponential %138 : tensor<4x8x64xf32>
    %cst_8 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %140 = stablehlo.broadcast_in_dim %cst_8, dims = [] : (tensor<f32>) -> tensor<4x8x64xf32>
    %141 = stablehlo.add %140, %139 : tensor<4x8x64xf32>
    %cst_9 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %142 = stablehlo.broadcast_in_dim %cst_9, dims = [] : (tensor<f32>) -> tensor<4x8x64xf32>
    %143 = stablehlo.divide %142, %141 : tensor<4x8x64xf32>
    %144 = stablehlo.multiply %137, %143 : tensor<4x8x64xf32>
    %145 = stablehlo.reshape %132 : (tensor<4x8x32xf32>) -> tensor<32x32xf32>
    %146 = call @atleast_2d_0(%arg9) : (tensor<64x32xf32>) -> tensor<64x32xf32>
    %147 = stablehlo.transpose %146, dims = [1, 0] : (tensor<64x32xf32>) -> tensor<32x64xf32>
    %148 = stablehlo.dot_general %145, %147, contracting_dims = [1] x [0], precision = [HIGHEST, HIGHEST] : (tensor<32x32xf32>, tensor<32x64xf32>) -> tensor<32x64xf32>
    %149 = stablehlo.reshape %148 : (tensor<32x64xf32>) -> tensor<4x8x64xf32>
    %150 = stablehlo.multiply %144, %149 : tensor<4x8x64xf32>
    %151 = stablehlo.reshape %150 : (tensor<4x8x64xf32>) -> tensor<32x64xf32>
    %152 = call @atleast_2d_1(%arg10) : (tensor<32x64xf32>) -> tensor<32x64xf32>
    %153 = stablehlo.transpose %152, dims = [1, 0] : (tensor<32x64xf32>) -> tensor<64x32xf32>
    %154 = stablehlo.dot_general %151, %153, contracting_dims = [1] x [0], precision = [HIGHEST, HIGHEST] : (tensor<32x64xf32>, tensor<64x32xf32>) -> tensor<32x32xf32>
    %155 = stablehlo.reshape %154 : (tensor<32x32xf32>) -> tensor<4x8x32xf32>
    %156 = stablehlo.add %116, %155 : tensor<4x8x32xf32>
    %cst_10 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %157 = stablehlo.broadcast_in_dim %cst_10, dims = [] : (tensor<f32>) -> tensor<4x8x32xf32>
    %158 = stablehlo.slice %arg12 [2:3] : (tensor<5xi64>) -> tensor<1xi64>
    %159 = stablehlo.reshape %158 : (tensor<1xi64>) -> tensor<i64>
    %160 = stablehlo.convert %159 : (tensor<i64>) -> tensor<f32>
    %161 = stablehlo.broadcast_in_dim %160, dims = [] : (tensor<f32>) -> tensor<4x8x32xf32>
    %162 = stablehlo.divide %157, %161 : tensor<4x8x32xf32>
    %163 = stablehlo.slice %arg11 [4:5] : (tensor<9xf64>) -> tensor<1xf64>
    %164 = stablehlo.reshape %163 : (tensor<1xf64>) -> tensor<f64>
    %165 = stablehlo.convert %164 : (tensor<f64>) -> tensor<f32>
    %166 = stablehlo.broadcast_in_dim %165, dims = [] : (tensor<f32>) -> tensor<4x8x32xf32>
    %167 = stablehlo.multiply %156, %166 : tensor<4x8x32xf32>
    %168 = stablehlo.multiply %162, %167 : tensor<4x8x32xf32>
    %169 = stablehlo.reshape %150 : (tensor<4x8x64xf32>) -> tensor<32x64xf32>
    %170 = stablehlo.reshape %168 : (tensor<4x8x32xf32>) -> tensor<32x32xf32>
    %171 = stablehlo.dot_general %170, %arg10, contracting_dims = [1] x [0], precision = [HIGHEST, HIGHEST] : (tensor<32x32xf32>, tensor<32x64xf32>) -> tensor<32x64xf32>
    %172 = stablehlo.transpose %170, dims = [1, 0] : (tensor<32x32xf32>) -> tensor<32x32xf32>
    %173 = stablehlo.dot_general %172, %169, contracting_dims = [1] x [0], precision = [HIGHEST, HIGHEST] : (tensor<32x32xf32>, tensor<32x64xf32>) -> tensor<32x64xf32>
    %174 = stablehlo.reshape %171 : (tensor<32x64xf32>) -> tensor<4x8x64xf32>
    %175 = sdy.sharding_constraint %173 <@mesh, [{}, {"model"}]> : tensor<32x64xf32>
    %176 = stablehlo.multiply %174, %144 : tensor<4x8x64xf32>
    %177 = stablehlo.multiply %174, %149 : tensor<4x8x64xf32>
    %178 = stablehlo.reshape %132 : (tensor<4x8x32xf32>) -> tensor<32x32xf32>
    %179 = stablehlo.reshape %176 : (tensor<4x8x64xf32>) -> tensor<32x64xf32>
    %180 = stablehlo.dot_general %179, %arg9, contracting_dims = [1] x [0], precision = [HIGHEST, HIGHEST] : (tensor<32x64xf32>, tensor<64x32xf32>) -> tensor<32x32xf32>
    %181 = stablehlo.reshape %180 : (tensor<32x32xf32>) -> tensor<4x8x32xf32>
    %182 = sdy.sharding_constraint %181 <@mesh, [{"data"}, {}, {}]> : tensor<4x8x32xf32>
    %183 = stablehlo.transpose %179, dims = [1, 0] : (tensor<32x64xf32>) -> tensor<64x32xf32>
    %184 = stablehlo.dot_general %183, %178, contracting_dims = [1] x [0], precision = [HIGHEST, HIGHEST] : (tensor<64x32xf32>, tensor<32x32xf32>) -> tensor<64x32xf32>
    %185 = sdy.sharding_constraint %184 <@mesh, [{"model"}, {}]> : tensor<64x32xf32>
    %186 = stablehlo.negate %137 : tensor<4x8x64xf32>
    %187 = stablehlo.exponential %186 : tensor<4x8x64xf32>
    %cst_11 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %188 = stablehlo.broadcast_in_dim %cst_11, dims = [] : (tensor<f32>) -> tensor<4x8x64xf32>
    %189 = stablehlo.add %188, %187 : tensor<4x8x64xf32>
    %cst_12 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %190 = stablehlo.broadcast_in_dim %cst_12, dims = [] : (tensor<f32>) -> tensor<4x8x64xf32>
    %191 = stablehlo.divide %190, %189 : tensor<4x8x64xf32>
    %192 = stablehlo.multiply %177, %191 : tensor<4x8x64xf32>
    %cst_13 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %193 = stablehlo.broadcast_in_dim %cst_13, dims = [] : (tensor<f32>) -> tensor<4x8x64xf32>
    %194 = stablehlo.subtract %193, %191 : tensor<4x8x64xf32>
    %195 = stablehlo.multiply %137, %194 : tensor<4x8x64xf32>
    %cst_14 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %196 = stablehlo.broadcast_in_dim %cst_14, dims = [] : (tensor<f32>) -> tensor<4x8x64xf32>
    %197 = stablehlo.add %196, %195 : tensor<4x8x64xf32>
    %198 = stablehlo.multiply %192, %197 : tensor<4x8x64xf32>
    %199 = stablehlo.reshape %132 : (tensor<4x8x32xf32>) -> tensor<32x32xf32>
    %200 = stablehlo.reshape %198 : (tensor<4x8x64xf32>) -> tensor<32x64xf32>
    %201 = stablehlo.dot_general %200, %arg8, contracting_dims = [1] x [0], precision = [HIGHEST, HIGHEST] : (tensor<32x64xf32>, tensor<64x32xf32>) -> tensor<32x32xf32>
    %202 = stablehlo.reshape %201 : (tensor<32x32xf32>) -> tensor<4x8x32xf32>
    %203 = sdy.sharding_constraint %202 <@mesh, [{"data"}, {}, {}]> : tensor<4x8x32xf32>
    %204 = stablehlo.transpose %200, dims = [1, 0] : (tensor<32x64xf32>) -> tensor<64x32xf32>
    %205 = stablehlo.dot_general %204, %199, contracting_dims = [1] x [0], precision = [HIGHEST, HIGHEST] : (tensor<64x32xf32>, tensor<32x32xf32>) -> tensor<64x32xf32>
    %206 = stablehlo.add %182, %203 : tensor<4x8x32xf32>
    %207 = sdy.sharding_constraint %205 <@mesh, [{"model"}, {}]> : tensor<64x32xf32>
    %208 = stablehlo.broadcast_in_dim %arg7, dims = [2] : (tensor<32xf32>) -> tensor<1x1x32xf32>
    %209 = stablehlo.broadcast_in_dim %208, dims = [0, 1, 2] : (tensor<1x1x32xf32>) -> tensor<4x8x32xf32>
    %210 = stablehlo.multiply %206, %209 : tensor<4x8x32xf32>
    %211 = stablehlo.multiply %206, %129 : tensor<4x8x32xf32>
    %cst_15 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %212 = stablehlo.reduce(%211 init: %cst_15) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x8x32xf32>, tensor<f32>) -> tensor<32xf32>
    %213 = stablehlo.broadcast_in_dim %212, dims = [2] : (tensor<32xf32>) -> tensor<1x1x32xf32>
    %214 = stablehlo.multiply %210, %116 : tensor<4x8x32xf32>
    %215 = stablehlo.broadcast_in_dim %127, dims = [0, 1, 2] : (tensor<4x8x1xf32>) -> tensor<4x8x32xf32>
    %216 = stablehlo.multiply %210, %215 : tensor<4x8x32xf32>
    %cst_16 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %217 = stablehlo.reduce(%214 init: %cst_16) applies stablehlo.add across dimensions = [2] : (tensor<4x8x32xf32>, tensor<f32>) -> tensor<4x8xf32>
    %218 = stablehlo.broadcast_in_dim %217, dims = [0, 1] : (tensor<4x8xf32>) -> tensor<4x8x1xf32>
    %219 = stablehlo.add %168, %216 : tensor<4x8x32xf32>
    %220 = stablehlo.multiply %127, %127 : tensor<4x8x1xf32>
    %221 = stablehlo.multiply %220, %127 : tensor<4x8x1xf32>
    %222 = stablehlo.slice %arg11 [5:6] : (tensor<9xf64>) -> tensor<1xf64>
    %223 = stablehlo.reshape %222 : (tensor<1xf64>) -> tensor<f64>
    %224 = stablehlo.convert %223 : (tensor<f64>) -> tensor<f32>
    %225 = stablehlo.broadcast_in_dim %224, dims = [] : (tensor<f32>) -> tensor<4x8x1xf32>
    %226 = stablehlo.multiply %218, %225 : tensor<4x8x1xf32>
    %227 = stablehlo.multiply %226, %221 : tensor<4x8x1xf32>
    %228 = stablehlo.broadcast_in_dim %227, dims = [0, 1, 2] : (tensor<4x8x1xf32>) -> tensor<4x8x32xf32>
    %229 = stablehlo.slice %arg12 [3:4] : (tensor<5xi64>) -> tensor<1xi64>
    %230 = stablehlo.reshape %229 : (tensor<1xi64>) -> tensor<i64>
    %231 = stablehlo.convert %230 : (tensor<i64>) -> tensor<f32>
    %232 = stablehlo.broadcast_in_dim %231, dims = [] : (tensor<f32>) -> tensor<4x8x32xf32>
    %233 = stablehlo.divide %228, %232 : tensor<4x8x32xf32>
    %234 = stablehlo.slice %arg11 [6:7] : (tensor<9xf64>) -> tensor<1xf64>
    %235 = stablehlo.reshape %234 : (tensor<1xf64>) -> tensor<f64>
    %236 = stablehlo.convert %235 : (tensor<f64>) -> tensor<f32>
    %237 = stablehlo.broadcast_in_dim %236, dims = [] : (tensor<f32>) -> tensor<4x8x32xf32>
    %238 = stablehlo.multiply %116, %237 : tensor<4x8x32xf32>
    %239 = stablehlo.multiply %233, %238 : tensor<4x8x32xf32>
    %240 = stablehlo.add %219, %239 : tensor<4x8x32xf32>
    %241 = stablehlo.reshape %110 : (tensor<4x8x32xf32>) -> tensor<32x32xf32>
    %242 = stablehlo.reshape %240 : (tensor<4x8x32xf32>) -> tensor<32x32xf32>
    %243 = stablehlo.dot_general %242, %arg6, contracting_dims = [1] x [0], precision = [HIGHEST, HIGHEST] : (tensor<32x32xf32>, tensor<32x32xf32>) -> tensor<32x32xf32>
    %244 = stablehlo.transpose %242, dims = [1, 0] : (tensor<32x32xf32>) -> tensor<32x32xf32>
    %245 = stablehlo.dot_general %244, %241, contracting_dims = [1] x [0], precision = [HIGHEST, HIGHEST] : (tensor<32x32xf32>, tensor<32x32xf32>) -> tensor<32x32xf32>
    %246 = stablehlo.reshape %243 : (tensor<32x32xf32>) -> tensor<4x8x32xf32>
    %247 = sdy.sharding_constraint %245 <@mesh, [{}, {"model"}]> : tensor<32x32xf32>
    %248 = stablehlo.reshape %246 : (tensor<4x8x32xf32>) -> tensor<4x8x4x8xf32>
    %249 = stablehlo.transpose %248, dims = [0, 2, 1, 3] : (tensor<4x8x4x8xf32>) -> tensor<4x4x8x8xf32>
    %250 = stablehlo.dot_general %68, %79, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [3], precision = [HIGHEST, HIGHEST] : (tensor<4x4x8x8xf32>, tensor<4x4x8x8xf32>) -> tensor<4x4x8x8xf32>
    %cst_17 = stablehlo.constant dense<0.353553385> : tensor<f32>
    %251 = stablehlo.broadcast_in_dim %cst_17, dims = [] : (tensor<f32>) -> tensor<4x4x8x8xf32>
    %252 = stablehlo.multiply %250, %251 : tensor<4x4x8x8xf32>
    %253 = stablehlo.iota dim = 0 : tensor<8x8xi32>
    %254 = stablehlo.iota dim = 1 : tensor<8x8xi32>
    %255 = stablehlo.compare LE, %254, %253, SIGNED : (tensor<8x8xi32>, tensor<8x8xi32>) -> tensor<8x8xi1>
    %cst_18 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %256 = call @_where(%255, %252, %cst_18) : (tensor<8x8xi1>, tensor<4x4x8x8xf32>, tensor<f32>) -> tensor<4x4x8x8xf32>
    %cst_19 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %257 = stablehlo.reduce(%256 init: %cst_19) applies stablehlo.maximum across dimensions = [3] : (tensor<4x4x8x8xf32>, tensor<f32>) -> tensor<4x4x8xf32>
    %258 = stablehlo.broadcast_in_dim %257, dims = [0, 1, 2] : (tensor<4x4x8xf32>) -> tensor<4x4x8x1xf32>
    %259 = stablehlo.broadcast_in_dim %258, dims = [0, 1, 2, 3] : (tensor<4x4x8x1xf32>) -> tensor<4x4x8x8xf32>
    %260 = stablehlo.subtract %256, %259 : tensor<4x4x8x8xf32>
    %261 = stablehlo.exponential %260 : tensor<4x4x8x8xf32>
    %cst_20 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %262 = stablehlo.reduce(%261 init: %cst_20) applies stablehlo.add across dimensions = [3] : (tensor<4x4x8x8xf32>, tensor<f32>) -> tensor<4x4x8xf32>
    %263 = stablehlo.broadcast_in_dim %262, dims = [0, 1, 2] : (tensor<4x4x8xf32>) -> tensor<4x4x8x1xf32>
    %264 = stablehlo.log %263 : tensor<4x4x8x1xf32>
    %265 = stablehlo.add %258, %264 : tensor<4x4x8x1xf32>
    %266 = stablehlo.reshape %265 : (tensor<4x4x8x1xf32>) -> tensor<4x4x8xf32>
    %267 = stablehlo.broadcast_in_dim %263, dims = [0, 1, 2, 3] : (tensor<4x4x8x1xf32>) -> tensor<4x4x8x8xf32>
    %268 = stablehlo.divide %261, %267 : tensor<4x4x8x8xf32>
    %269 = stablehlo.dot_general %268, %249, batching_dims = [0, 1] x [0, 1], contracting_dims = [2] x [2], precision = [HIGHEST, HIGHEST] : (tensor<4x4x8x8xf32>, tensor<4x4x8x8xf32>) -> tensor<4x4x8x8xf32>
    %270 = stablehlo.dot_general %249, %81, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [3], precision = [HIGHEST, HIGHEST] : (tensor<4x4x8x8xf32>, tensor<4x4x8x8xf32>) -> tensor<4x4x8x8xf32>
    %271 = stablehlo.multiply %249, %105 : tensor<4x4x8x8xf32>
    %cst_21 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %272 = stablehlo.reduce(%271 init: %cst_21) applies stablehlo.add across dimensions = [3] : (tensor<4x4x8x8xf32>, tensor<f32>) -> tensor<4x4x8xf32>
    %273 = stablehlo.broadcast_in_dim %272, dims = [0, 1, 2] : (tensor<4x4x8xf32>) -> tensor<4x4x8x1xf32>
    %274 = stablehlo.broadcast_in_dim %273, dims = [0, 1, 2, 3] : (tensor<4x4x8x1xf32>) -> tensor<4x4x8x8xf32>
    %275 = stablehlo.subtract %270, %274 : tensor<4x4x8x8xf32>
    %276 = stablehlo.multiply %268, %275 : tensor<4x4x8x8xf32>
    %277 = stablehlo.dot_general %276, %79, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [2], precision = [HIGHEST, HIGHEST] : (tensor<4x4x8x8xf32>, tensor<4x4x8x8xf32>) -> tensor<4x4x8x8xf32>
    %cst_22 = stablehlo.constant dense<0.353553385> : tensor<f32>
    %278 = stablehlo.broadcast_in_dim %cst_22, dims = [] : (tensor<f32>) -> tensor<4x4x8x8xf32>
    %279 = stablehlo.multiply %278, %277 : tensor<4x4x8x8xf32>
    %280 = stablehlo.dot_general %276, %68, batching_dims = [0, 1] x [0, 1], contracting_dims = [2] x [2], precision = [HIGHEST, HIGHEST] : (tensor<4x4x8x8xf32>, tensor<4x4x8x8xf32>) -> tensor<4x4x8x8xf32>
    %cst_23 = stablehlo.constant dense<0.353553385> : tensor<f32>
    %281 = stablehlo.broadcast_in_dim %cst_23, dims = [] : (tensor<f32>) -> tensor<4x4x8x8xf32>
    %282 = stablehlo.multiply %281, %280 : tensor<4x4x8x8xf32>
    %283 = stablehlo.broadcast_in_dim %65, dims = [0, 1, 2, 3] : (tensor<1x1x8x8xf32>) -> tensor<4x4x8x8xf32>
    %284 = stablehlo.multiply %282, %283 : tensor<4x4x8x8xf32>
    %285 = stablehlo.slice %284 [0:4, 0:4, 0:8, 0:4] : (tensor<4x4x8x8xf32>) -> tensor<4x4x8x4xf32>
    %286 = stablehlo.negate %285 : tensor<4x4x8x4xf32>
    %cst_24 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %287 = stablehlo.broadcast_in_dim %cst_24, dims = [] : (tensor<f32>) -> tensor<4x4x8x8xf32>
    %c_25 = stablehlo.constant dense<0> : tensor<i64>
    %c_26 = stablehlo.constant dense<0> : tensor<i64>
    %c_27 = stablehlo.constant dense<0> : tensor<i64>
    %c_28 = stablehlo.constant dense<4> : tensor<i64>
    %288 = stablehlo.dynamic_update_slice %287, %286, %c_25, %c_26, %c_27, %c_28 : (tensor<4x4x8x8xf32>, tensor<4x4x8x4xf32>, tensor<i64>, tensor<i64>, tensor<i64>, tensor<i64>) -> tensor<4x4x8x8xf32>
    %289 = stablehlo.slice %284 [0:4, 0:4, 0:8, 4:8] : (tensor<4x4x8x8xf32>) -> tensor<4x4x8x4xf32>
    %cst_29 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %290 = stablehlo.broadcast_in_dim %cst_29, dims = [] : (tensor<f32>) -> tensor<4x4x8x8xf32>
    %c_30 = stablehlo.constant dense<0> : tensor<i64>
    %c_31 = stablehlo.constant dense<0> : tensor<i64>
    %c_32 = stablehlo.constant dense<0> : tensor<i64>
    %c_33 = stablehlo.constant dense<0> : tensor<i64>
    %291 = stablehlo.dynamic_update_slice %290, %289, %c_30, %c_31, %c_32, %c_33 : (tensor<4x4x8x8xf32>, tensor<4x4x8x4xf32>, tensor<i64>, tensor<i64>, tensor<i64>, tensor<i64>) -> tensor<4x4x8x8xf32>
    %292 = stablehlo.add %288, %291 : tensor<4x4x8x8xf32>
    %293 = stablehlo.broadcast_in_dim %58, dims = [0, 1, 2, 3] : (tensor<1x1x8x8xf32>) -> tensor<4x4x8x8xf32>
    %294 = stablehlo.multiply %282, %293 : tensor<4x4x8x8xf32>
    %295 = stablehlo.add %292, %294 : tensor<4x4x8x8xf32>
    %296 = stablehlo.broadcast_in_dim %65, dims = [0, 1, 2, 3] : (tensor<1x1x8x8xf32>) -> tensor<4x4x8x8xf32>
    %297 = stablehlo.multiply %279, %296 : tensor<4x4x8x8xf32>
    %298 = stablehlo.slice %297 [0:4, 0:4, 0:8, 0:4] : (tensor<4x4x8x8xf32>) -> tensor<4x4x8x4xf32>
    %299 = stablehlo.negate %298 : tensor<4x4x8x4xf32>
    %cst_34 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %300 = stablehlo.broadcast_in_dim %cst_34, dims = [] : (tensor<f32>) -> tensor<4x4x8x8xf32>
    %c_35 = stablehlo.constant dense<0> : tensor<i64>
    %c_36 = stablehlo.constant dense<0> : tensor<i64>
    %c_37 = stablehlo.constant dense<0> : tensor<i64>
    %c_38 = stablehlo.constant dense<4> : tensor<i64>
    %301 = stablehlo.dynamic_update_slice %300, %299, %c_35, %c_36, %c_37, %c_38 : (tensor<4x4x8x8xf32>, tensor<4x4x8x4xf32>, tensor<i64>, tensor<i64>, tensor<i64>, tensor<i64>) -> tensor<4x4x8x8xf32>
    %302 = stablehlo.slice %297 [0:4, 0:4, 0:8, 4:8] : (tensor<4x4x8x8xf32>) -> tensor<4x4x8x4xf32>
    %cst_39 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %303 = stablehlo.broadcast_in_dim %cst_39, dims = [] : (tensor<f32>) -> tensor<4x4x8x8xf32>
    %c_40 = stablehlo.constant dense<0> : tensor<i64>
    %c_41 = stablehlo.constant dense<0> : tensor<i64>
    %c_42 = stablehlo.constant dense<0> : tensor<i64>
    %c_43 = stablehlo.constant dense<0> : tensor<i64>
    %304 = stablehlo.dynamic_update_slice %303, %302, %c_40, %c_41, %c_42, %c_43 : (tensor<4x4x8x8xf32>, tensor<4x4x8x4xf32>, tensor<i64>, tensor<i64>, tensor<i64>, tensor<i64>) -> tensor<4x4x8x8xf32>
    %305 = stablehlo.add %301, %304 : tensor<4x4x8x8xf32>
    %306 = stablehlo.broadcast_in_dim %58, dims = [0, 1, 2, 3] : (tensor<1x1x8x8xf32>) -> tensor<4x4x8x8xf32>
    %307 = stablehlo.multiply %279, %306 : tensor<4x4x8x8xf32>
    %308 = stablehlo.add %305, %307 : tensor<4x4x8x8xf32>
    %309 = stablehlo.transpose %269, dims = [0, 2, 1, 3] : (tensor<4x4x8x8xf32>) -> tensor<4x8x4x8xf32>
    %310 = stablehlo.reshape %309 : (tensor<4x8x4x8xf32>) -> tensor<4x8x32xf32>
    %311 = stablehlo.reshape %40 : (tensor<4x8x32xf32>) -> tensor<32x32xf32>
    %312 = stablehlo.reshape %310 : (tensor<4x8x32xf32>) -> tensor<32x32xf32>
    %313 = stablehlo.dot_general %312, %arg5, contracting_dims = [1] x [0], precision = [HIGHEST, HIGHEST] : (tensor<32x32xf32>, tensor<32x32xf32>) -> tensor<32x32xf32>
    %314 = stablehlo.reshape %313 : (tensor<32x32xf32>) -> tensor<4x8x32xf32>
    %315 = sdy.sharding_constraint %314 <@mesh, [{"data"}, {}, {}]> : tensor<4x8x32xf32>
    %316 = stablehlo.transpose %312, dims = [1, 0] : (tensor<32x32xf32>) -> tensor<32x32xf32>
    %317 = stablehlo.dot_general %316, %311, contracting_dims = [1] x [0], precision = [HIGHEST, HIGHEST] : (tensor<32x32xf32>, tensor<32x32xf32>) -> tensor<32x32xf32>
    %318 = sdy.sharding_constraint %317 <@mesh, [{"model"}, {}]> : tensor<32x32xf32>
    %319 = stablehlo.transpose %295, dims = [0, 2, 1, 3] : (tensor<4x4x8x8xf32>) -> tensor<4x8x4x8xf32>
    %320 = stablehlo.reshape %319 : (tensor<4x8x4x8xf32>) -> tensor<4x8x32xf32>
    %321 = stablehlo.reshape %40 : (tensor<4x8x32xf32>) -> tensor<32x32xf32>
    %322 = stablehlo.reshape %320 : (tensor<4x8x32xf32>) -> tensor<32x32xf32>
    %323 = stablehlo.dot_general %322, %arg4, contracting_dims = [1] x [0], precision = [HIGHEST, HIGHEST] : (tensor<32x32xf32>, tensor<32x32xf32>) -> tensor<32x32xf32>
    %324 = stablehlo.reshape %323 : (tensor<32x32xf32>) -> tensor<4x8x32xf32>
    %325 = sdy.sharding_constraint %324 <@mesh, [{"data"}, {}, {}]> : tensor<4x8x32xf32>
    %326 = stablehlo.transpose %322, dims = [1, 0] : (tensor<32x32xf32>) -> tensor<32x32xf32>
    %327 = stablehlo.dot_general %326, %321, contracting_dims = [1] x [0], precision = [HIGHEST, HIGHEST] : (tensor<32x32xf32>, tensor<32x32xf32>) -> tensor<32x32xf32>
    %328 = stablehlo.add %315, %325 : tensor<4x8x32xf32>
    %329 = sdy.sharding_constraint %327 <@mesh, [{"model"}, {}]> : tensor<32x32xf32>
    %330 = stablehlo.transpose %308, dims = [0, 2, 1, 3] : (tensor<4x4x8x8xf32>) -> tensor<4x8x4x8xf32>
    %331 = stablehlo.reshape %330 : (tensor<4x8x4x8xf32>) -> tensor<4x8x32xf32>
    %332 = stablehlo.reshape %40 : (tensor<4x8x32xf32>) -> tensor<32x32xf32>
    %333 = stablehlo.reshape %331 : (tensor<4x8x32xf32>) -> tensor<32x32xf32>
    %334 = stablehlo.dot_general %333, %arg3, contracting_dims = [1] x [0], precision = [HIGHEST, HIGHEST] : (tensor<32x32xf32>, tensor<32x32xf32>) -> tensor<32x32xf32>
    %335 = stablehlo.reshape %334 : (tensor<32x32xf32>) -> tensor<4x8x32xf32>
    %336 = sdy.sharding_constraint %335 <@mesh, [{"data"}, {}, {}]> : tensor<4x8x32xf32>
    %337 = stablehlo.transpose %333, dims = [1, 0] : (tensor<32x32xf32>) -> tensor<32x32xf32>
    %338 = stablehlo.dot_general %337, %332, contracting_dims = [1] x [0], precision = [HIGHEST, HIGHEST] : (tensor<32x32xf32>, tensor<32x32xf32>) -> tensor<32x32xf32>
    %339 = stablehlo.add %328, %336 : tensor<4x8x32xf32>
    %340 = sdy.sharding_constraint %338 <@mesh, [{"model"}, {}]> : tensor<32x32xf32>
    %341 = stablehlo.broadcast_in_dim %arg2, dims = [2] : (tensor<32xf32>) -> tensor<1x1x32xf32>
    %342 = stablehlo.broadcast_in_dim %341, dims = [0, 1, 2] : (tensor<1x1x32xf32>) -> tensor<4x8x32xf32>
    %343 = stablehlo.multiply %339, %342 : tensor<4x8x32xf32>
    %344 = stablehlo.multiply %339, %37 : tensor<4x8x32xf32>
    %cst_44 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %345 = stablehlo.reduce(%344 init: %cst_44) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x8x32xf32>, tensor<f32>) -> tensor<32xf32>
    %346 = stablehlo.broadcast_in_dim %345, dims = [2] : (tensor<32xf32>) -> tensor<1x1x32xf32>
    %347 = stablehlo.multiply %343, %arg1 : tensor<4x8x32xf32>
    %348 = stablehlo.broadcast_in_dim %35, dims = [0, 1, 2] : (tensor<4x8x1xf32>) -> tensor<4x8x32xf32>
    %349 = stablehlo.multiply %343, %348 : tensor<4x8x32xf32>
    %cst_45 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %350 = stablehlo.reduce(%347 init: %cst_45) applies stablehlo.add across dimensions = [2] : (tensor<4x8x32xf32>, tensor<f32>) -> tensor<4x8xf32>
    %351 = stablehlo.broadcast_in_dim %350, dims = [0, 1] : (tensor<4x8xf32>) -> tensor<4x8x1xf32>
    %352 = stablehlo.add %240, %349 : tensor<4x8x32xf32>
    %353 = stablehlo.multiply %35, %35 : tensor<4x8x1xf32>
    %354 = stablehlo.multiply %353, %35 : tensor<4x8x1xf32>
    %355 = stablehlo.slice %arg11 [7:8] : (tensor<9xf64>) -> tensor<1xf64>
    %356 = stablehlo.reshape %355 : (tensor<1xf64>) -> tensor<f64>
    %357 = stablehlo.convert %356 : (tensor<f64>) -> tensor<f32>
    %358 = stablehlo.broadcast_in_dim %357, dims = [] : (tensor<f32>) -> tensor<4x8x1xf32>
    %359 = stablehlo.multiply %351, %358 : tensor<4x8x1xf32>
    %360 = stablehlo.multiply %359, %354 : tensor<4x8x1xf32>
    %361 = stablehlo.broadcast_in_dim %360, dims = [0, 1, 2] : (tensor<4x8x1xf32>) -> tensor<4x8x32xf32>
    %362 = stablehlo.slice %arg12 [4:5] : (tensor<5xi64>) -> tensor<1xi64>
    %363 = stablehlo.reshape %362 : (tensor<1xi64>) -> tensor<i64>
    %364 = stablehlo.convert %363 : (tensor<i64>) -> tensor<f32>
    %365 = stablehlo.broadcast_in_dim %364, dims = [] : (tensor<f32>) -> tensor<4x8x32xf32>
    %366 = stablehlo.divide %361, %365 : tensor<4x8x32xf32>
    %367 = stablehlo.slice %arg11 [8:9] : (tensor<9xf64>) -> tensor<1xf64>
    %368 = stablehlo.reshape %367 : (tensor<1xf64>) -> tensor<f64>
    %369 = stablehlo.convert %368 : (tensor<f64>) -> tensor<f32>
    %370 = stablehlo.broadcast_in_dim %369, dims = [] : (tensor<f32>) -> tensor<4x8x32xf32>
    %371 = stablehlo.multiply %arg1, %370 : tensor<4x8x32xf32>
    %372 = stablehlo.multiply %366, %371 : tensor<4x8x32xf32>
    %373 = stablehlo.add %352, %372 : tensor<4x8x32xf32>
    return %175, %185, %207, %213, %247, %318, %329, %340, %346, %373 : tensor<32x64xf32>, tensor<64x32xf32>, tensor<64x32xf32>, tensor<1x1x32xf32>, tensor<32x32xf32>, tensor<32x32xf32>, tensor<32x32xf32>, tensor<32x32xf32>, tensor<1x1x32xf32>, tensor<4x8x32xf32>
  }
  func.func private @atleast_2d(%arg0: tensor<32x32xf32>) -> tensor<32x32xf32> {
    return %arg0 : tensor<32x32xf32>
  }
  func.func private @_where(%arg0: tensor<8x8xi1>, %arg1: tensor<4x4x8x8xf32>, %arg2: tensor<f32>) -> tensor<4x4x8x8xf32> {
    %0 = stablehlo.broadcast_in_dim %arg0, dims = [2, 3] : (tensor<8x8xi1>) -> tensor<4x4x8x8xi1>
    %1 = stablehlo.broadcast_in_dim %arg2, dims = [] : (tensor<f32>) -> tensor<4x4x8x8xf32>
    %2 = stablehlo.select %0, %arg1, %1 : tensor<4x4x8x8xi1>, tensor<4x4x8x8xf32>
    return %2 : tensor<4x4x8x8xf32>
  }
  func.func private @atleast_2d_0(%arg0: tensor<64x32xf32>) -> tensor<64x32xf32> {
    return %arg0 : tensor<64x32xf32>
  }
  func.func private @atleast_2d_1(%arg0: tensor<32x64xf32>) -> tensor<32x64xf32> {
    return %arg0 : tensor<32x64xf32>
  }
}

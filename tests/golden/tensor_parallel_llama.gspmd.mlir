// torch 2.13.0, jax 0.10.2, transformers 5.23.0
module @jit_spmd attributes {mhlo.num_partitions = 8 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<4xf32> {mhlo.sharding = "{replicated}"},
    %arg1: tensor<4x8x32xf32> {mhlo.sharding = "{devices=[2,1,1,4]<=[8] last_tile_dim_replicate}"},
    %arg2: tensor<32xf32> {mhlo.sharding = "{replicated}"},
    %arg3: tensor<32x32xf32> {mhlo.sharding = "{devices=[4,1,2]<=[2,4]T(1,0) last_tile_dim_replicate}"},
    %arg4: tensor<32x32xf32> {mhlo.sharding = "{devices=[4,1,2]<=[2,4]T(1,0) last_tile_dim_replicate}"},
    %arg5: tensor<32x32xf32> {mhlo.sharding = "{devices=[4,1,2]<=[2,4]T(1,0) last_tile_dim_replicate}"},
    %arg6: tensor<32x32xf32> {mhlo.sharding = "{devices=[1,4,2]<=[2,4]T(1,0) last_tile_dim_replicate}"},
    %arg7: tensor<32xf32> {mhlo.sharding = "{replicated}"},
    %arg8: tensor<64x32xf32> {mhlo.sharding = "{devices=[4,1,2]<=[2,4]T(1,0) last_tile_dim_replicate}"},
    %arg9: tensor<64x32xf32> {mhlo.sharding = "{devices=[4,1,2]<=[2,4]T(1,0) last_tile_dim_replicate}"},
    %arg10: tensor<32x64xf32> {mhlo.sharding = "{devices=[1,4,2]<=[2,4]T(1,0) last_tile_dim_replicate}"},
    %arg11: tensor<9xf64>,
    %arg12: tensor<5xi64>) -> (
    tensor<32x64xf32> {jax.result_info = "result[0]", mhlo.sharding = "{devices=[1,4,2]<=[2,4]T(1,0) last_tile_dim_replicate}"},
    tensor<64x32xf32> {jax.result_info = "result[1]", mhlo.sharding = "{devices=[4,1,2]<=[2,4]T(1,0) last_tile_dim_replicate}"},
    tensor<64x32xf32> {jax.result_info = "result[2]", mhlo.sharding = "{devices=[4,1,2]<=[2,4]T(1,0) last_tile_dim_replicate}"},
    tensor<1x1x32xf32> {jax.result_info = "result[3]"},
    tensor<32x32xf32> {jax.result_info = "result[4]", mhlo.sharding = "{devices=[1,4,2]<=[2,4]T(1,0) last_tile_dim_replicate}"},
    tensor<32x32xf32> {jax.result_info = "result[5]", mhlo.sharding = "{devices=[4,1,2]<=[2,4]T(1,0) last_tile_dim_replicate}"},
    tensor<32x32xf32> {jax.result_info = "result[6]", mhlo.sharding = "{devices=[4,1,2]<=[2,4]T(1,0) last_tile_dim_replicate}"},
    tensor<32x32xf32> {jax.result_info = "result[7]", mhlo.sharding = "{devices=[4,1,2]<=[2,4]T(1,0) last_tile_dim_replicate}"},
    tensor<1x1x32xf32> {jax.result_info = "result[8]"},
    tensor<4x8x32xf32> {jax.result_info = "result[9]"}) {
    %0 = stablehlo.custom_call @Sharding(%arg0) {backend_config = "", mhlo.sharding = "{replicated}"} : (tensor<4xf32>) -> tensor<4xf32>
    %1 = stablehlo.custom_call @Sharding(%arg2) {backend_config = "", mhlo.sharding = "{replicated}"} : (tensor<32xf32>) -> tensor<32xf32>
    %2 = stablehlo.custom_call @Sharding(%arg7) {backend_config = "", mhlo.sharding = "{replicated}"} : (tensor<32xf32>) -> tensor<32xf32>
    %3 = stablehlo.iota dim = 0 : tensor<8xi64>
    %c = stablehlo.constant dense<1> : tensor<i64>
    %4 = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<i64>) -> tensor<8xi64>
    %5 = stablehlo.multiply %3, %4 : tensor<8xi64>
    %c_0 = stablehlo.constant dense<0> : tensor<i64>
    %6 = stablehlo.broadcast_in_dim %c_0, dims = [] : (tensor<i64>) -> tensor<8xi64>
    %7 = stablehlo.add %6, %5 : tensor<8xi64>
    %8 = stablehlo.reshape %7 : (tensor<8xi64>) -> tensor<1x8xi64>
    %9 = stablehlo.reshape %8 : (tensor<1x8xi64>) -> tensor<1x8x1xi64>
    %10 = stablehlo.convert %9 : (tensor<1x8x1xi64>) -> tensor<1x8x1xf32>
    %11 = stablehlo.broadcast_in_dim %0, dims = [2] : (tensor<4xf32>) -> tensor<1x1x4xf32>
    %12 = stablehlo.broadcast_in_dim %10, dims = [0, 1, 2] : (tensor<1x8x1xf32>) -> tensor<1x8x4xf32>
    %13 = stablehlo.broadcast_in_dim %11, dims = [0, 1, 2] : (tensor<1x1x4xf32>) -> tensor<1x8x4xf32>
    %14 = stablehlo.multiply %12, %13 : tensor<1x8x4xf32>
    %15 = stablehlo.concatenate %14, %14, dim = 2 : (tensor<1x8x4xf32>, tensor<1x8x4xf32>) -> tensor<1x8x8xf32>
    %16 = stablehlo.cosine %15 : tensor<1x8x8xf32>
    %17 = stablehlo.slice %arg11 [0:1] : (tensor<9xf64>) -> tensor<1xf64>
    %18 = stablehlo.reshape %17 : (tensor<1xf64>) -> tensor<f64>
    %19 = stablehlo.convert %18 : (tensor<f64>) -> tensor<f32>
    %20 = stablehlo.broadcast_in_dim %19, dims = [] : (tensor<f32>) -> tensor<1x8x8xf32>
    %21 = stablehlo.multiply %16, %20 : tensor<1x8x8xf32>
    %22 = stablehlo.sine %15 : tensor<1x8x8xf32>
    %23 = stablehlo.slice %arg11 [1:2] : (tensor<9xf64>) -> tensor<1xf64>
    %24 = stablehlo.reshape %23 : (tensor<1xf64>) -> tensor<f64>
    %25 = stablehlo.convert %24 : (tensor<f64>) -> tensor<f32>
    %26 = stablehlo.broadcast_in_dim %25, dims = [] : (tensor<f32>) -> tensor<1x8x8xf32>
    %27 = stablehlo.multiply %22, %26 : tensor<1x8x8xf32>
    %28 = stablehlo.multiply %arg1, %arg1 : tensor<4x8x32xf32>
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %29 = stablehlo.reduce(%28 init: %cst) applies stablehlo.add across dimensions = [2] : (tensor<4x8x32xf32>, tensor<f32>) -> tensor<4x8xf32>
    %30 = stablehlo.broadcast_in_dim %29, dims = [0, 1] : (tensor<4x8xf32>) -> tensor<4x8x1xf32>
    %cst_1 = stablehlo.constant dense<3.200000e+01> : tensor<f32>
    %31 = stablehlo.broadcast_in_dim %cst_1, dims = [] : (tensor<f32>) -> tensor<4x8x1xf32>
    %32 = stablehlo.divide %30, %31 : tensor<4x8x1xf32>
    %33 = stablehlo.slice %arg11 [2:3] : (tensor<9xf64>) -> tensor<1xf64>
    %34 = stablehlo.reshape %33 : (tensor<1xf64>) -> tensor<f64>
    %35 = stablehlo.convert %34 : (tensor<f64>) -> tensor<f32>
    %36 = stablehlo.broadcast_in_dim %35, dims = [] : (tensor<f32>) -> tensor<4x8x1xf32>
    %37 = stablehlo.add %32, %36 : tensor<4x8x1xf32>
    %38 = stablehlo.rsqrt %37 : tensor<4x8x1xf32>
    %39 = stablehlo.broadcast_in_dim %38, dims = [0, 1, 2] : (tensor<4x8x1xf32>) -> tensor<4x8x32xf32>
    %40 = stablehlo.multiply %arg1, %39 : tensor<4x8x32xf32>
    %41 = stablehlo.broadcast_in_dim %1, dims = [2] : (tensor<32xf32>) -> tensor<1x1x32xf32>
    %42 = stablehlo.broadcast_in_dim %41, dims = [0, 1, 2] : (tensor<1x1x32xf32>) -> tensor<4x8x32xf32>
    %43 = stablehlo.multiply %42, %40 : tensor<4x8x32xf32>
    %44 = call @atleast_2d(%arg3) : (tensor<32x32xf32>) -> tensor<32x32xf32>
    %45 = stablehlo.transpose %44, dims = [1, 0] : (tensor<32x32xf32>) -> tensor<32x32xf32>
    %46 = stablehlo.dot_general %43, %45, contracting_dims = [2] x [0], precision = [HIGHEST, HIGHEST] : (tensor<4x8x32xf32>, tensor<32x32xf32>) -> tensor<4x8x32xf32>
    %47 = call @atleast_2d(%arg4) : (tensor<32x32xf32>) -> tensor<32x32xf32>
    %48 = stablehlo.transpose %47, dims = [1, 0] : (tensor<32x32xf32>) -> tensor<32x32xf32>
    %49 = stablehlo.dot_general %43, %48, contracting_dims = [2] x [0], precision = [HIGHEST, HIGHEST] : (tensor<4x8x32xf32>, tensor<32x32xf32>) -> tensor<4x8x32xf32>
    %50 = call @atleast_2d(%arg5) : (tensor<32x32xf32>) -> tensor<32x32xf32>
    %51 = stablehlo.transpose %50, dims = [1, 0] : (tensor<32x32xf32>) -> tensor<32x32xf32>
    %52 = stablehlo.dot_general %43, %51, contracting_dims = [2] x [0], precision = [HIGHEST, HIGHEST] : (tensor<4x8x32xf32>, tensor<32x32xf32>) -> tensor<4x8x32xf32>
    %53 = stablehlo.reshape %46 : (tensor<4x8x32xf32>) -> tensor<4x8x4x8xf32>
    %54 = stablehlo.transpose %53, dims = [0, 2, 1, 3] : (tensor<4x8x4x8xf32>) -> tensor<4x4x8x8xf32>
    %55 = stablehlo.reshape %21 : (tensor<1x8x8xf32>) -> tensor<1x1x8x8xf32>
    %56 = stablehlo.broadcast_in_dim %55, dims = [0, 1, 2, 3] : (tensor<1x1x8x8xf32>) -> tensor<4x4x8x8xf32>
    %57 = stablehlo.multiply %54, %56 : tensor<4x4x8x8xf32>
    %58 = stablehlo.slice %54 [0:4, 0:4, 0:8, 4:8] : (tensor<4x4x8x8xf32>) -> tensor<4x4x8x4xf32>
    %59 = stablehlo.negate %58 : tensor<4x4x8x4xf32>
    %60 = stablehlo.slice %54 [0:4, 0:4, 0:8, 0:4] : (tensor<4x4x8x8xf32>) -> tensor<4x4x8x4xf32>
    %61 = stablehlo.concatenate %59, %60, dim = 3 : (tensor<4x4x8x4xf32>, tensor<4x4x8x4xf32>) -> tensor<4x4x8x8xf32>
    %62 = stablehlo.reshape %27 : (tensor<1x8x8xf32>) -> tensor<1x1x8x8xf32>
    %63 = stablehlo.broadcast_in_dim %62, dims = [0, 1, 2, 3] : (tensor<1x1x8x8xf32>) -> tensor<4x4x8x8xf32>
    %64 = stablehlo.multiply %61, %63 : tensor<4x4x8x8xf32>
    %65 = stablehlo.add %57, %64 : tensor<4x4x8x8xf32>
    %66 = stablehlo.reshape %49 : (tensor<4x8x32xf32>) -> tensor<4x8x4x8xf32>
    %67 = stablehlo.transpose %66, dims = [0, 2, 1, 3] : (tensor<4x8x4x8xf32>) -> tensor<4x4x8x8xf32>
    %68 = stablehlo.broadcast_in_dim %55, dims = [0, 1, 2, 3] : (tensor<1x1x8x8xf32>) -> tensor<4x4x8x8xf32>
    %69 = stablehlo.multiply %67, %68 : tensor<4x4x8x8xf32>
    %70 = stablehlo.slice %67 [0:4, 0:4, 0:8, 4:8] : (tensor<4x4x8x8xf32>) -> tensor<4x4x8x4xf32>
    %71 = stablehlo.negate %70 : tensor<4x4x8x4xf32>
    %72 = stablehlo.slice %67 [0:4, 0:4, 0:8, 0:4] : (tensor<4x4x8x8xf32>) -> tensor<4x4x8x4xf32>
    %73 = stablehlo.concatenate %71, %72, dim = 3 : (tensor<4x4x8x4xf32>, tensor<4x4x8x4xf32>) -> tensor<4x4x8x8xf32>
    %74 = stablehlo.broadcast_in_dim %62, dims = [0, 1, 2, 3] : (tensor<1x1x8x8xf32>) -> tensor<4x4x8x8xf32>
    %75 = stablehlo.multiply %73, %74 : tensor<4x4x8x8xf32>
    %76 = stablehlo.add %69, %75 : tensor<4x4x8x8xf32>
    %77 = stablehlo.reshape %52 : (tensor<4x8x32xf32>) -> tensor<4x8x4x8xf32>
    %78 = stablehlo.transpose %77, dims = [0, 2, 1, 3] : (tensor<4x8x4x8xf32>) -> tensor<4x4x8x8xf32>
    %79 = stablehlo.slice %arg12 [0:1] : (tensor<5xi64>) -> tensor<1xi64>
    %80 = stablehlo.reshape %79 : (tensor<1xi64>) -> tensor<i64>
    %81 = stablehlo.slice %arg12 [1:2] : (tensor<5xi64>) -> tensor<1xi64>
    %82 = stablehlo.reshape %81 : (tensor<1xi64>) -> tensor<i64>
    %83 = stablehlo.dot_general %65, %76, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [3], precision = [HIGHEST, HIGHEST] : (tensor<4x4x8x8xf32>, tensor<4x4x8x8xf32>) -> tensor<4x4x8x8xf32>
    %cst_2 = stablehlo.constant dense<0.353553385> : tensor<f32>
    %84 = stablehlo.broadcast_in_dim %cst_2, dims = [] : (tensor<f32>) -> tensor<4x4x8x8xf32>
    %85 = stablehlo.multiply %83, %84 : tensor<4x4x8x8xf32>
    %86 = stablehlo.iota dim = 0 : tensor<8x8xi32>
    %87 = stablehlo.iota dim = 1 : tensor<8x8xi32>
    %88 = stablehlo.compare LE, %87, %86, SIGNED : (tensor<8x8xi32>, tensor<8x8xi32>) -> tensor<8x8xi1>
    %cst_3 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %89 = call @_where(%88, %85, %cst_3) : (tensor<8x8xi1>, tensor<4x4x8x8xf32>, tensor<f32>) -> tensor<4x4x8x8xf32>
    %cst_4 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %90 = stablehlo.reduce(%89 init: %cst_4) applies stablehlo.maximum across dimensions = [3] : (tensor<4x4x8x8xf32>, tensor<f32>) -> tensor<4x4x8xf32>
    %91 = stablehlo.broadcast_in_dim %90, dims = [0, 1, 2] : (tensor<4x4x8xf32>) -> tensor<4x4x8x1xf32>
    %92 = stablehlo.broadcast_in_dim %91, dims = [0, 1, 2, 3] : (tensor<4x4x8x1xf32>) -> tensor<4x4x8x8xf32>
    %93 = stablehlo.subtract %89, %92 : tensor<4x4x8x8xf32>
    %94 = stablehlo.exponential %93 : tensor<4x4x8x8xf32>
    %cst_5 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %95 = stablehlo.reduce(%94 init: %cst_5) applies stablehlo.add across dimensions = [3] : (tensor<4x4x8x8xf32>, tensor<f32>) -> tensor<4x4x8xf32>
    %96 = stablehlo.broadcast_in_dim %95, dims = [0, 1, 2] : (tensor<4x4x8xf32>) -> tensor<4x4x8x1xf32>
    %97 = stablehlo.log %96 : tensor<4x4x8x1xf32>
    %98 = stablehlo.add %91, %97 : tensor<4x4x8x1xf32>
    %99 = stablehlo.reshape %98 : (tensor<4x4x8x1xf32>) -> tensor<4x4x8xf32>
    %100 = stablehlo.broadcast_in_dim %96, dims = [0, 1, 2, 3] : (tensor<4x4x8x1xf32>) -> tensor<4x4x8x8xf32>
    %101 = stablehlo.divide %94, %100 : tensor<4x4x8x8xf32>
    %102 = stablehlo.dot_general %101, %78, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [2], precision = [HIGHEST, HIGHEST] : (tensor<4x4x8x8xf32>, tensor<4x4x8x8xf32>) -> tensor<4x4x8x8xf32>
    %103 = stablehlo.broadcast_in_dim %80, dims = [] : (tensor<i64>) -> tensor<1xi64>
    %104 = stablehlo.broadcast_in_dim %82, dims = [] : (tensor<i64>) -> tensor<1xi64>
    %105 = stablehlo.concatenate %103, %104, dim = 0 : (tensor<1xi64>, tensor<1xi64>) -> tensor<2xi64>
    %106 = stablehlo.transpose %102, dims = [0, 2, 1, 3] : (tensor<4x4x8x8xf32>) -> tensor<4x8x4x8xf32>
    %107 = stablehlo.reshape %106 : (tensor<4x8x4x8xf32>) -> tensor<4x8x32xf32>
    %108 = call @atleast_2d(%arg6) : (tensor<32x32xf32>) -> tensor<32x32xf32>
    %109 = stablehlo.transpose %108, dims = [1, 0] : (tensor<32x32xf32>) -> tensor<32x32xf32>
    %110 = stablehlo.dot_general %107, %109, contracting_dims = [2] x [0], precision = [HIGHEST, HIGHEST] : (tensor<4x8x32xf32>, tensor<32x32xf32>) -> tensor<4x8x32xf32>
    %111 = stablehlo.add %arg1, %110 : tensor<4x8x32xf32>
    %112 = stablehlo.multiply %111, %111 : tensor<4x8x32xf32>
    %cst_6 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %113 = stablehlo.reduce(%112 init: %cst_6) applies stablehlo.add across dimensions = [2] : (tensor<4x8x32xf32>, tensor<f32>) -> tensor<4x8xf32>
    %114 = stablehlo.broadcast_in_dim %113, dims = [0, 1] : (tensor<4x8xf32>) -> tensor<4x8x1xf32>
    %cst_7 = stablehlo.constant dense<3.200000e+01> : tensor<f32>
    %115 = stablehlo.broadcast_in_dim %cst_7, dims = [] : (tensor<f32>) -> tensor<4x8x1xf32>
    %116 = stablehlo.divide %114, %115 : tensor<4x8x1xf32>
    %117 = stablehlo.slice %arg11 [3:4] : (tensor<9xf64>) -> tensor<1xf64>
    %118 = stablehlo.reshape %117 : (tensor<1xf64>) -> tensor<f64>
    %119 = stablehlo.convert %118 : (tensor<f64>) -> tensor<f32>
    %120 = stablehlo.broadcast_in_dim %119, dims = [] : (tensor<f32>) -> tensor<4x8x1xf32>
    %121 = stablehlo.add %116, %120 : tensor<4x8x1xf32>
    %122 = stablehlo.rsqrt %121 : tensor<4x8x1xf32>
    %123 = stablehlo.broadcast_in_dim %122, dims = [0, 1, 2] : (tensor<4x8x1xf32>) -> tensor<4x8x32xf32>
    %124 = stablehlo.multiply %111, %123 : tensor<4x8x32xf32>
    %125 = stablehlo.broadcast_in_dim %2, dims = [2] : (tensor<32xf32>) -> tensor<1x1x32xf32>
    %126 = stablehlo.broadcast_in_dim %125, dims = [0, 1, 2] : (tensor<1x1x32xf32>) -> tensor<4x8x32xf32>
    %127 = stablehlo.multiply %126, %124 : tensor<4x8x32xf32>
    %128 = call @atleast_2d_0(%arg8) : (tensor<64x32xf32>) -> tensor<64x32xf32>
    %129 = stablehlo.transpose %128, dims = [1, 0] : (tensor<64x32xf32>) -> tensor<32x64xf32>
    %130 = stablehlo.dot_general %127, %129, contracting_dims = [2] x [0], precision = [HIGHEST, HIGHEST] : (tensor<4x8x32xf32>, tensor<32x64xf32>) -> tensor<4x8x64xf32>
    %131 = stablehlo.negate %130 : tensor<4x8x64xf32>
    %132 = stablehlo.exponential %131 : tensor<4x8x64xf32>
    %cst_8 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %133 = stablehlo.broadcast_in_dim %cst_8, dims = [] : (tensor<f32>) -> tensor<4x8x64xf32>
    %134 = stablehlo.add %133, %132 : tensor<4x8x64xf32>
    %cst_9 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %135 = stablehlo.broadcast_in_dim %cst_9, dims = [] : (tensor<f32>) -> tensor<4x8x64xf32>
    %136 = stablehlo.divide %135, %134 : tensor<4x8x64xf32>
    %137 = stablehlo.multiply %130, %136 : tensor<4x8x64xf32>
    %138 = call @atleast_2d_0(%arg9) : (tensor<64x32xf32>) -> tensor<64x32xf32>
    %139 = stablehlo.transpose %138, dims = [1, 0] : (tensor<64x32xf32>) -> tensor<32x64xf32>
    %140 = stablehlo.dot_general %127, %139, contracting_dims = [2] x [0], precision = [HIGHEST, HIGHEST] : (tensor<4x8x32xf32>, tensor<32x64xf32>) -> tensor<4x8x64xf32>
    %141 = stablehlo.multiply %137, %140 : tensor<4x8x64xf32>
    %142 = call @atleast_2d_1(%arg10) : (tensor<32x64xf32>) -> tensor<32x64xf32>
    %143 = stablehlo.transpose %142, dims = [1, 0] : (tensor<32x64xf32>) -> tensor<64x32xf32>
    %144 = stablehlo.dot_general %141, %143, contracting_dims = [2] x [0], precision = [HIGHEST, HIGHEST] : (tensor<4x8x64xf32>, tensor<64x32xf32>) -> tensor<4x8x32xf32>
    %145 = stablehlo.add %111, %144 : tensor<4x8x32xf32>
    %cst_10 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %146 = stablehlo.broadcast_in_dim %cst_10, dims = [] : (tensor<f32>) -> tensor<4x8x32xf32>
    %147 = stablehlo.slice %arg12 [2:3] : (tensor<5xi64>) -> tensor<1xi64>
    %148 = stablehlo.reshape %147 : (tensor<1xi64>) -> tensor<i64>
    %149 = stablehlo.convert %148 : (tensor<i64>) -> tensor<f32>
    %150 = stablehlo.broadcast_in_dim %149, dims = [] : (tensor<f32>) -> tensor<4x8x32xf32>
    %151 = stablehlo.divide %146, %150 : tensor<4x8x32xf32>
    %152 = stablehlo.slice %arg11 [4:5] : (tensor<9xf64>) -> tensor<1xf64>
    %153 = stablehlo.reshape %152 : (tensor<1xf64>) -> tensor<f64>
    %154 = stablehlo.convert %153 : (tensor<f64>) -> tensor<f32>
    %155 = stablehlo.broadcast_in_dim %154, dims = [] : (tensor<f32>) -> tensor<4x8x32xf32>
    %156 = stablehlo.multiply %145, %155 : tensor<4x8x32xf32>
    %157 = stablehlo.multiply %151, %156 : tensor<4x8x32xf32>
    %158 = stablehlo.reshape %157 : (tensor<4x8x32xf32>) -> tensor<32x32xf32>
    %159 = stablehlo.reshape %141 : (tensor<4x8x64xf32>) -> tensor<32x64xf32>
    %160 = stablehlo.dot_general %157, %arg10, contracting_dims = [2] x [0], precision = [HIGHEST, HIGHEST] : (tensor<4x8x32xf32>, tensor<32x64xf32>) -> tensor<4x8x64xf32>
    %161 = stablehlo.transpose %158, dims = [1, 0] : (tensor<32x32xf32>) -> tensor<32x32xf32>
    %162 = stablehlo.dot_general %161, %159, contracting_dims = [1] x [0], precision = [HIGHEST, HIGHEST] : (tensor<32x32xf32>, tensor<32x64xf32>) -> tensor<32x64xf32>
    %163 = stablehlo.custom_call @Sharding(%162) {backend_config = "", mhlo.sharding = "{devices=[1,4,2]<=[2,4]T(1,0) last_tile_dim_replicate}"} : (tensor<32x64xf32>) -> tensor<32x64xf32>
    %164 = stablehlo.multiply %160, %137 : tensor<4x8x64xf32>
    %165 = stablehlo.multiply %160, %140 : tensor<4x8x64xf32>
    %166 = stablehlo.reshape %164 : (tensor<4x8x64xf32>) -> tensor<32x64xf32>
    %167 = stablehlo.reshape %127 : (tensor<4x8x32xf32>) -> tensor<32x32xf32>
    %168 = stablehlo.dot_general %164, %arg9, contracting_dims = [2] x [0], precision = [HIGHEST, HIGHEST] : (tensor<4x8x64xf32>, tensor<64x32xf32>) -> tensor<4x8x32xf32>
    %169 = stablehlo.custom_call @Sharding(%168) {backend_config = "", mhlo.sharding = "{devices=[2,1,1,4]<=[8] last_tile_dim_replicate}"} : (tensor<4x8x32xf32>) -> tensor<4x8x32xf32>
    %170 = stablehlo.transpose %166, dims = [1, 0] : (tensor<32x64xf32>) -> tensor<64x32xf32>
    %171 = stablehlo.dot_general %170, %167, contracting_dims = [1] x [0], precision = [HIGHEST, HIGHEST] : (tensor<64x32xf32>, tensor<32x32xf32>) -> tensor<64x32xf32>
    %172 = stablehlo.custom_call @Sharding(%171) {backend_config = "", mhlo.sharding = "{devices=[4,1,2]<=[2,4]T(1,0) last_tile_dim_replicate}"} : (tensor<64x32xf32>) -> tensor<64x32xf32>
    %173 = stablehlo.negate %130 : tensor<4x8x64xf32>
    %174 = stablehlo.exponential %173 : tensor<4x8x64xf32>
    %cst_11 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %175 = stablehlo.broadcast_in_dim %cst_11, dims = [] : (tensor<f32>) -> tensor<4x8x64xf32>
    %176 = stablehlo.add %175, %174 : tensor<4x8x64xf32>
    %cst_12 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %177 = stablehlo.broadcast_in_dim %cst_12, dims = [] : (tensor<f32>) -> tensor<4x8x64xf32>
    %178 = stablehlo.divide %177, %176 : tensor<4x8x64xf32>
    %179 = stablehlo.multiply %165, %178 : tensor<4x8x64xf32>
    %cst_13 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %180 = stablehlo.broadcast_in_dim %cst_13, dims = [] : (tensor<f32>) -> tensor<4x8x64xf32>
    %181 = stablehlo.subtract %180, %178 : tensor<4x8x64xf32>
    %182 = stablehlo.multiply %130, %181 : tensor<4x8x64xf32>
    %cst_14 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %183 = stablehlo.broadcast_in_dim %cst_14, dims = [] : (tensor<f32>) -> tensor<4x8x64xf32>
    %184 = stablehlo.add %183, %182 : tensor<4x8x64xf32>
    %185 = stablehlo.multiply %179, %184 : tensor<4x8x64xf32>
    %186 = stablehlo.reshape %185 : (tensor<4x8x64xf32>) -> tensor<32x64xf32>
    %187 = stablehlo.reshape %127 : (tensor<4x8x32xf32>) -> tensor<32x32xf32>
    %188 = stablehlo.dot_general %185, %arg8, contracting_dims = [2] x [0], precision = [HIGHEST, HIGHEST] : (tensor<4x8x64xf32>, tensor<64x32xf32>) -> tensor<4x8x32xf32>
    %189 = stablehlo.custom_call @Sharding(%188) {backend_config = "", mhlo.sharding = "{devices=[2,1,1,4]<=[8] last_tile_dim_replicate}"} : (tensor<4x8x32xf32>) -> tensor<4x8x32xf32>
    %190 = stablehlo.transpose %186, dims = [1, 0] : (tensor<32x64xf32>) -> tensor<64x32xf32>
    %191 = stablehlo.dot_general %190, %187, contracting_dims = [1] x [0], precision = [HIGHEST, HIGHEST] : (tensor<64x32xf32>, tensor<32x32xf32>) -> tensor<64x32xf32>
    %192 = stablehlo.reshape %164 : (tensor<4x8x64xf32>) -> tensor<4x8x4x16xf32>
    %193 = stablehlo.reshape %arg9 : (tensor<64x32xf32>) -> tensor<4x16x32xf32>
    %194 = stablehlo.dot_general %192, %193, batching_dims = [2] x [0], contracting_dims = [3] x [1], precision = [HIGHEST, HIGHEST] : (tensor<4x8x4x16xf32>, tensor<4x16x32xf32>) -> tensor<4x4x8x32xf32>
    %195 = stablehlo.custom_call @Sharding(%194) {backend_config = "unspecified_dims=[1,2,3]", mhlo.sharding = "{devices=[4,1,1,1,2]<=[2,4]T(1,0) last_tile_dim_replicate}"} : (tensor<4x4x8x32xf32>) -> tensor<4x4x8x32xf32>
    %196 = stablehlo.reshape %185 : (tensor<4x8x64xf32>) -> tensor<4x8x4x16xf32>
    %197 = stablehlo.reshape %arg8 : (tensor<64x32xf32>) -> tensor<4x16x32xf32>
    %198 = stablehlo.dot_general %196, %197, batching_dims = [2] x [0], contracting_dims = [3] x [1], precision = [HIGHEST, HIGHEST] : (tensor<4x8x4x16xf32>, tensor<4x16x32xf32>) -> tensor<4x4x8x32xf32>
    %199 = stablehlo.custom_call @Sharding(%198) {backend_config = "unspecified_dims=[1,2,3]", mhlo.sharding = "{devices=[4,1,1,1,2]<=[2,4]T(1,0) last_tile_dim_replicate}"} : (tensor<4x4x8x32xf32>) -> tensor<4x4x8x32xf32>
    %200 = stablehlo.add %195, %199 : tensor<4x4x8x32xf32>
    %cst_15 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %201 = stablehlo.broadcast_in_dim %cst_15, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %202 = stablehlo.dot_general %201, %200, contracting_dims = [0] x [0], precision = [HIGHEST, HIGHEST] : (tensor<4xf32>, tensor<4x4x8x32xf32>) -> tensor<4x8x32xf32>
    %203 = stablehlo.custom_call @Sharding(%202) {backend_config = "", mhlo.sharding = "{devices=[2,1,1,4]<=[8] last_tile_dim_replicate}"} : (tensor<4x8x32xf32>) -> tensor<4x8x32xf32>
    %204 = stablehlo.custom_call @Sharding(%191) {backend_config = "", mhlo.sharding = "{devices=[4,1,2]<=[2,4]T(1,0) last_tile_dim_replicate}"} : (tensor<64x32xf32>) -> tensor<64x32xf32>
    %205 = stablehlo.broadcast_in_dim %2, dims = [2] : (tensor<32xf32>) -> tensor<1x1x32xf32>
    %206 = stablehlo.broadcast_in_dim %205, dims = [0, 1, 2] : (tensor<1x1x32xf32>) -> tensor<4x8x32xf32>
    %207 = stablehlo.multiply %203, %206 : tensor<4x8x32xf32>
    %208 = stablehlo.multiply %203, %124 : tensor<4x8x32xf32>
    %cst_16 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %209 = stablehlo.reduce(%208 init: %cst_16) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x8x32xf32>, tensor<f32>) -> tensor<32xf32>
    %210 = stablehlo.broadcast_in_dim %209, dims = [2] : (tensor<32xf32>) -> tensor<1x1x32xf32>
    %211 = stablehlo.multiply %207, %111 : tensor<4x8x32xf32>
    %212 = stablehlo.broadcast_in_dim %122, dims = [0, 1, 2] : (tensor<4x8x1xf32>) -> tensor<4x8x32xf32>
    %213 = stablehlo.multiply %207, %212 : tensor<4x8x32xf32>
    %cst_17 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %214 = stablehlo.reduce(%211 init: %cst_17) applies stablehlo.add across dimensions = [2] : (tensor<4x8x32xf32>, tensor<f32>) -> tensor<4x8xf32>
    %215 = stablehlo.broadcast_in_dim %214, dims = [0, 1] : (tensor<4x8xf32>) -> tensor<4x8x1xf32>
    %216 = stablehlo.add %157, %213 : tensor<4x8x32xf32>
    %217 = stablehlo.multiply %122, %122 : tensor<4x8x1xf32>
    %218 = stablehlo.multiply %217, %122 : tensor<4x8x1xf32>
    %219 = stablehlo.slice %arg11 [5:6] : (tensor<9xf64>) -> tensor<1xf64>
    %220 = stablehlo.reshape %219 : (tensor<1xf64>) -> tensor<f64>
    %221 = stablehlo.convert %220 : (tensor<f64>) -> tensor<f32>
    %222 = stablehlo.broadcast_in_dim %221, dims = [] : (tensor<f32>) -> tensor<4x8x1xf32>
    %223 = stablehlo.multiply %215, %222 : tensor<4x8x1xf32>
    %224 = stablehlo.multiply %223, %218 : tensor<4x8x1xf32>
    %225 = stablehlo.broadcast_in_dim %224, dims = [0, 1, 2] : (tensor<4x8x1xf32>) -> tensor<4x8x32xf32>
    %226 = stablehlo.slice %arg12 [3:4] : (tensor<5xi64>) -> tensor<1xi64>
    %227 = stablehlo.reshape %226 : (tensor<1xi64>) -> tensor<i64>
    %228 = stablehlo.convert %227 : (tensor<i64>) -> tensor<f32>
    %229 = stablehlo.broadcast_in_dim %228, dims = [] : (tensor<f32>) -> tensor<4x8x32xf32>
    %230 = stablehlo.divide %225, %229 : tensor<4x8x32xf32>
    %231 = stablehlo.slice %arg11 [6:7] : (tensor<9xf64>) -> tensor<1xf64>
    %232 = stablehlo.reshape %231 : (tensor<1xf64>) -> tensor<f64>
    %233 = stablehlo.convert %232 : (tensor<f64>) -> tensor<f32>
    %234 = stablehlo.broadcast_in_dim %233, dims = [] : (tensor<f32>) -> tensor<4x8x32xf32>
    %235 = stablehlo.multiply %111, %234 : tensor<4x8x32xf32>
    %236 = stablehlo.multiply %230, %235 : tensor<4x8x32xf32>
    %237 = stablehlo.add %216, %236 : tensor<4x8x32xf32>
    %238 = stablehlo.reshape %237 : (tensor<4x8x32xf32>) -> tensor<32x32xf32>
    %239 = stablehlo.reshape %107 : (tensor<4x8x32xf32>) -> tensor<32x32xf32>
    %240 = stablehlo.dot_general %237, %arg6, contracting_dims = [2] x [0], precision = [HIGHEST, HIGHEST] : (tensor<4x8x32xf32>, tensor<32x32xf32>) -> tensor<4x8x32xf32>
    %241 = stablehlo.transpose %238, dims = [1, 0] : (tensor<32x32xf32>) -> tensor<32x32xf32>
    %242 = stablehlo.dot_general %241, %239, contracting_dims = [1] x [0], precision = [HIGHEST, HIGHEST] : (tensor<32x32xf32>, tensor<32x32xf32>) -> tensor<32x32xf32>
    %243 = stablehlo.custom_call @Sharding(%242) {backend_config = "", mhlo.sharding = "{devices=[1,4,2]<=[2,4]T(1,0) last_tile_dim_replicate}"} : (tensor<32x32xf32>) -> tensor<32x32xf32>
    %244 = stablehlo.reshape %240 : (tensor<4x8x32xf32>) -> tensor<4x8x4x8xf32>
    %245 = stablehlo.transpose %244, dims = [0, 2, 1, 3] : (tensor<4x8x4x8xf32>) -> tensor<4x4x8x8xf32>
    %246 = stablehlo.dot_general %65, %76, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [3], precision = [HIGHEST, HIGHEST] : (tensor<4x4x8x8xf32>, tensor<4x4x8x8xf32>) -> tensor<4x4x8x8xf32>
    %cst_18 = stablehlo.constant dense<0.353553385> : tensor<f32>
    %247 = stablehlo.broadcast_in_dim %cst_18, dims = [] : (tensor<f32>) -> tensor<4x4x8x8xf32>
    %248 = stablehlo.multiply %246, %247 : tensor<4x4x8x8xf32>
    %249 = stablehlo.iota dim = 0 : tensor<8x8xi32>
    %250 = stablehlo.iota dim = 1 : tensor<8x8xi32>
    %251 = stablehlo.compare LE, %250, %249, SIGNED : (tensor<8x8xi32>, tensor<8x8xi32>) -> tensor<8x8xi1>
    %cst_19 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %252 = call @_where(%251, %248, %cst_19) : (tensor<8x8xi1>, tensor<4x4x8x8xf32>, tensor<f32>) -> tensor<4x4x8x8xf32>
    %cst_20 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %253 = stablehlo.reduce(%252 init: %cst_20) applies stablehlo.maximum across dimensions = [3] : (tensor<4x4x8x8xf32>, tensor<f32>) -> tensor<4x4x8xf32>
    %254 = stablehlo.broadcast_in_dim %253, dims = [0, 1, 2] : (tensor<4x4x8xf32>) -> tensor<4x4x8x1xf32>
    %255 = stablehlo.broadcast_in_dim %254, dims = [0, 1, 2, 3] : (tensor<4x4x8x1xf32>) -> tensor<4x4x8x8xf32>
    %256 = stablehlo.subtract %252, %255 : tensor<4x4x8x8xf32>
    %257 = stablehlo.exponential %256 : tensor<4x4x8x8xf32>
    %cst_21 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %258 = stablehlo.reduce(%257 init: %cst_21) applies stablehlo.add across dimensions = [3] : (tensor<4x4x8x8xf32>, tensor<f32>) -> tensor<4x4x8xf32>
    %259 = stablehlo.broadcast_in_dim %258, dims = [0, 1, 2] : (tensor<4x4x8xf32>) -> tensor<4x4x8x1xf32>
    %260 = stablehlo.log %259 : tensor<4x4x8x1xf32>
    %261 = stablehlo.add %254, %260 : tensor<4x4x8x1xf32>
    %262 = stablehlo.reshape %261 : (tensor<4x4x8x1xf32>) -> tensor<4x4x8xf32>
    %263 = stablehlo.broadcast_in_dim %259, dims = [0, 1, 2, 3] : (tensor<4x4x8x1xf32>) -> tensor<4x4x8x8xf32>
    %264 = stablehlo.divide %257, %263 : tensor<4x4x8x8xf32>
    %265 = stablehlo.dot_general %264, %245, batching_dims = [0, 1] x [0, 1], contracting_dims = [2] x [2], precision = [HIGHEST, HIGHEST] : (tensor<4x4x8x8xf32>, tensor<4x4x8x8xf32>) -> tensor<4x4x8x8xf32>
    %266 = stablehlo.dot_general %245, %78, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [3], precision = [HIGHEST, HIGHEST] : (tensor<4x4x8x8xf32>, tensor<4x4x8x8xf32>) -> tensor<4x4x8x8xf32>
    %267 = stablehlo.multiply %245, %102 : tensor<4x4x8x8xf32>
    %cst_22 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %268 = stablehlo.reduce(%267 init: %cst_22) applies stablehlo.add across dimensions = [3] : (tensor<4x4x8x8xf32>, tensor<f32>) -> tensor<4x4x8xf32>
    %269 = stablehlo.broadcast_in_dim %268, dims = [0, 1, 2] : (tensor<4x4x8xf32>) -> tensor<4x4x8x1xf32>
    %270 = stablehlo.broadcast_in_dim %269, dims = [0, 1, 2, 3] : (tensor<4x4x8x1xf32>) -> tensor<4x4x8x8xf32>
    %271 = stablehlo.subtract %266, %270 : tensor<4x4x8x8xf32>
    %272 = stablehlo.multiply %264, %271 : tensor<4x4x8x8xf32>
    %273 = stablehlo.dot_general %272, %76, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [2], precision = [HIGHEST, HIGHEST] : (tensor<4x4x8x8xf32>, tensor<4x4x8x8xf32>) -> tensor<4x4x8x8xf32>
    %cst_23 = stablehlo.constant dense<0.353553385> : tensor<f32>
    %274 = stablehlo.broadcast_in_dim %cst_23, dims = [] : (tensor<f32>) -> tensor<4x4x8x8xf32>
    %275 = stablehlo.multiply %274, %273 : tensor<4x4x8x8xf32>
    %276 = stablehlo.dot_general %272, %65, batching_dims = [0, 1] x [0, 1], contracting_dims = [2] x [2], precision = [HIGHEST, HIGHEST] : (tensor<4x4x8x8xf32>, tensor<4x4x8x8xf32>) -> tensor<4x4x8x8xf32>
    %cst_24 = stablehlo.constant dense<0.353553385> : tensor<f32>
    %277 = stablehlo.broadcast_in_dim %cst_24, dims = [] : (tensor<f32>) -> tensor<4x4x8x8xf32>
    %278 = stablehlo.multiply %277, %276 : tensor<4x4x8x8xf32>
    %279 = stablehlo.broadcast_in_dim %62, dims = [0, 1, 2, 3] : (tensor<1x1x8x8xf32>) -> tensor<4x4x8x8xf32>
    %280 = stablehlo.multiply %278, %279 : tensor<4x4x8x8xf32>
    %281 = stablehlo.slice %280 [0:4, 0:4, 0:8, 0:4] : (tensor<4x4x8x8xf32>) -> tensor<4x4x8x4xf32>
    %282 = stablehlo.negate %281 : tensor<4x4x8x4xf32>
    %cst_25 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %283 = stablehlo.broadcast_in_dim %cst_25, dims = [] : (tensor<f32>) -> tensor<4x4x8x8xf32>
    %c_26 = stablehlo.constant dense<0> : tensor<i64>
    %c_27 = stablehlo.constant dense<0> : tensor<i64>
    %c_28 = stablehlo.constant dense<0> : tensor<i64>
    %c_29 = stablehlo.constant dense<4> : tensor<i64>
    %284 = stablehlo.dynamic_update_slice %283, %282, %c_26, %c_27, %c_28, %c_29 : (tensor<4x4x8x8xf32>, tensor<4x4x8x4xf32>, tensor<i64>, tensor<i64>, tensor<i64>, tensor<i64>) -> tensor<4x4x8x8xf32>
    %285 = stablehlo.slice %280 [0:4, 0:4, 0:8, 4:8] : (tensor<4x4x8x8xf32>) -> tensor<4x4x8x4xf32>
    %cst_30 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %286 = stablehlo.broadcast_in_dim %cst_30, dims = [] : (tensor<f32>) -> tensor<4x4x8x8xf32>
    %c_31 = stablehlo.constant dense<0> : tensor<i64>
    %c_32 = stablehlo.constant dense<0> : tensor<i64>
    %c_33 = stablehlo.constant dense<0> : tensor<i64>
    %c_34 = stablehlo.constant dense<0> : tensor<i64>
    %287 = stablehlo.dynamic_update_slice %286, %285, %c_31, %c_32, %c_33, %c_34 : (tensor<4x4x8x8xf32>, tensor<4x4x8x4xf32>, tensor<i64>, tensor<i64>, tensor<i64>, tensor<i64>) -> tensor<4x4x8x8xf32>
    %288 = stablehlo.add %284, %287 : tensor<4x4x8x8xf32>
    %289 = stablehlo.broadcast_in_dim %55, dims = [0, 1, 2, 3] : (tensor<1x1x8x8xf32>) -> tensor<4x4x8x8xf32>
    %290 = stablehlo.multiply %278, %289 : tensor<4x4x8x8xf32>
    %291 = stablehlo.add %288, %290 : tensor<4x4x8x8xf32>
    %292 = stablehlo.broadcast_in_dim %62, dims = [0, 1, 2, 3] : (tensor<1x1x8x8xf32>) -> tensor<4x4x8x8xf32>
    %293 = stablehlo.multiply %275, %292 : tensor<4x4x8x8xf32>
    %294 = stablehlo.slice %293 [0:4, 0:4, 0:8, 0:4] : (tensor<4x4x8x8xf32>) -> tensor<4x4x8x4xf32>
    %295 = stablehlo.negate %294 : tensor<4x4x8x4xf32>
    %cst_35 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %296 = stablehlo.broadcast_in_dim %cst_35, dims = [] : (tensor<f32>) -> tensor<4x4x8x8xf32>
    %c_36 = stablehlo.constant dense<0> : tensor<i64>
    %c_37 = stablehlo.constant dense<0> : tensor<i64>
    %c_38 = stablehlo.constant dense<0> : tensor<i64>
    %c_39 = stablehlo.constant dense<4> : tensor<i64>
    %297 = stablehlo.dynamic_update_slice %296, %295, %c_36, %c_37, %c_38, %c_39 : (tensor<4x4x8x8xf32>, tensor<4x4x8x4xf32>, tensor<i64>, tensor<i64>, tensor<i64>, tensor<i64>) -> tensor<4x4x8x8xf32>
    %298 = stablehlo.slice %293 [0:4, 0:4, 0:8, 4:8] : (tensor<4x4x8x8xf32>) -> tensor<4x4x8x4xf32>
    %cst_40 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %299 = stablehlo.broadcast_in_dim %cst_40, dims = [] : (tensor<f32>) -> tensor<4x4x8x8xf32>
    %c_41 = stablehlo.constant dense<0> : tensor<i64>
    %c_42 = stablehlo.constant dense<0> : tensor<i64>
    %c_43 = stablehlo.constant dense<0> : tensor<i64>
    %c_44 = stablehlo.constant dense<0> : tensor<i64>
    %300 = stablehlo.dynamic_update_slice %299, %298, %c_41, %c_42, %c_43, %c_44 : (tensor<4x4x8x8xf32>, tensor<4x4x8x4xf32>, tensor<i64>, tensor<i64>, tensor<i64>, tensor<i64>) -> tensor<4x4x8x8xf32>
    %301 = stablehlo.add %297, %300 : tensor<4x4x8x8xf32>
    %302 = stablehlo.broadcast_in_dim %55, dims = [0, 1, 2, 3] : (tensor<1x1x8x8xf32>) -> tensor<4x4x8x8xf32>
    %303 = stablehlo.multiply %275, %302 : tensor<4x4x8x8xf32>
    %304 = stablehlo.add %301, %303 : tensor<4x4x8x8xf32>
    %305 = stablehlo.transpose %265, dims = [0, 2, 1, 3] : (tensor<4x4x8x8xf32>) -> tensor<4x8x4x8xf32>
    %306 = stablehlo.reshape %305 : (tensor<4x8x4x8xf32>) -> tensor<4x8x32xf32>
    %307 = stablehlo.reshape %306 : (tensor<4x8x32xf32>) -> tensor<32x32xf32>
    %308 = stablehlo.reshape %43 : (tensor<4x8x32xf32>) -> tensor<32x32xf32>
    %309 = stablehlo.dot_general %306, %arg5, contracting_dims = [2] x [0], precision = [HIGHEST, HIGHEST] : (tensor<4x8x32xf32>, tensor<32x32xf32>) -> tensor<4x8x32xf32>
    %310 = stablehlo.custom_call @Sharding(%309) {backend_config = "", mhlo.sharding = "{devices=[2,1,1,4]<=[8] last_tile_dim_replicate}"} : (tensor<4x8x32xf32>) -> tensor<4x8x32xf32>
    %311 = stablehlo.transpose %307, dims = [1, 0] : (tensor<32x32xf32>) -> tensor<32x32xf32>
    %312 = stablehlo.dot_general %311, %308, contracting_dims = [1] x [0], precision = [HIGHEST, HIGHEST] : (tensor<32x32xf32>, tensor<32x32xf32>) -> tensor<32x32xf32>
    %313 = stablehlo.custom_call @Sharding(%312) {backend_config = "", mhlo.sharding = "{devices=[4,1,2]<=[2,4]T(1,0) last_tile_dim_replicate}"} : (tensor<32x32xf32>) -> tensor<32x32xf32>
    %314 = stablehlo.transpose %291, dims = [0, 2, 1, 3] : (tensor<4x4x8x8xf32>) -> tensor<4x8x4x8xf32>
    %315 = stablehlo.reshape %314 : (tensor<4x8x4x8xf32>) -> tensor<4x8x32xf32>
    %316 = stablehlo.reshape %315 : (tensor<4x8x32xf32>) -> tensor<32x32xf32>
    %317 = stablehlo.reshape %43 : (tensor<4x8x32xf32>) -> tensor<32x32xf32>
    %318 = stablehlo.dot_general %315, %arg4, contracting_dims = [2] x [0], precision = [HIGHEST, HIGHEST] : (tensor<4x8x32xf32>, tensor<32x32xf32>) -> tensor<4x8x32xf32>
    %319 = stablehlo.custom_call @Sharding(%318) {backend_config = "", mhlo.sharding = "{devices=[2,1,1,4]<=[8] last_tile_dim_replicate}"} : (tensor<4x8x32xf32>) -> tensor<4x8x32xf32>
    %320 = stablehlo.transpose %316, dims = [1, 0] : (tensor<32x32xf32>) -> tensor<32x32xf32>
    %321 = stablehlo.dot_general %320, %317, contracting_dims = [1] x [0], precision = [HIGHEST, HIGHEST] : (tensor<32x32xf32>, tensor<32x32xf32>) -> tensor<32x32xf32>
    %322 = stablehlo.reshape %306 : (tensor<4x8x32xf32>) -> tensor<4x8x4x8xf32>
    %323 = stablehlo.reshape %arg5 : (tensor<32x32xf32>) -> tensor<4x8x32xf32>
    %324 = stablehlo.dot_general %322, %323, batching_dims = [2] x [0], contracting_dims = [3] x [1], precision = [HIGHEST, HIGHEST] : (tensor<4x8x4x8xf32>, tensor<4x8x32xf32>) -> tensor<4x4x8x32xf32>
    %325 = stablehlo.custom_call @Sharding(%324) {backend_config = "unspecified_dims=[1,2,3]", mhlo.sharding = "{devices=[4,1,1,1,2]<=[2,4]T(1,0) last_tile_dim_replicate}"} : (tensor<4x4x8x32xf32>) -> tensor<4x4x8x32xf32>
    %326 = stablehlo.reshape %315 : (tensor<4x8x32xf32>) -> tensor<4x8x4x8xf32>
    %327 = stablehlo.reshape %arg4 : (tensor<32x32xf32>) -> tensor<4x8x32xf32>
    %328 = stablehlo.dot_general %326, %327, batching_dims = [2] x [0], contracting_dims = [3] x [1], precision = [HIGHEST, HIGHEST] : (tensor<4x8x4x8xf32>, tensor<4x8x32xf32>) -> tensor<4x4x8x32xf32>
    %329 = stablehlo.custom_call @Sharding(%328) {backend_config = "unspecified_dims=[1,2,3]", mhlo.sharding = "{devices=[4,1,1,1,2]<=[2,4]T(1,0) last_tile_dim_replicate}"} : (tensor<4x4x8x32xf32>) -> tensor<4x4x8x32xf32>
    %330 = stablehlo.add %325, %329 : tensor<4x4x8x32xf32>
    %cst_45 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %331 = stablehlo.broadcast_in_dim %cst_45, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %332 = stablehlo.dot_general %331, %330, contracting_dims = [0] x [0], precision = [HIGHEST, HIGHEST] : (tensor<4xf32>, tensor<4x4x8x32xf32>) -> tensor<4x8x32xf32>
    %333 = stablehlo.custom_call @Sharding(%332) {backend_config = "", mhlo.sharding = "{devices=[2,1,1,4]<=[8] last_tile_dim_replicate}"} : (tensor<4x8x32xf32>) -> tensor<4x8x32xf32>
    %334 = stablehlo.custom_call @Sharding(%321) {backend_config = "", mhlo.sharding = "{devices=[4,1,2]<=[2,4]T(1,0) last_tile_dim_replicate}"} : (tensor<32x32xf32>) -> tensor<32x32xf32>
    %335 = stablehlo.transpose %304, dims = [0, 2, 1, 3] : (tensor<4x4x8x8xf32>) -> tensor<4x8x4x8xf32>
    %336 = stablehlo.reshape %335 : (tensor<4x8x4x8xf32>) -> tensor<4x8x32xf32>
    %337 = stablehlo.reshape %336 : (tensor<4x8x32xf32>) -> tensor<32x32xf32>
    %338 = stablehlo.reshape %43 : (tensor<4x8x32xf32>) -> tensor<32x32xf32>
    %339 = stablehlo.dot_general %336, %arg3, contracting_dims = [2] x [0], precision = [HIGHEST, HIGHEST] : (tensor<4x8x32xf32>, tensor<32x32xf32>) -> tensor<4x8x32xf32>
    %340 = stablehlo.custom_call @Sharding(%339) {backend_config = "", mhlo.sharding = "{devices=[2,1,1,4]<=[8] last_tile_dim_replicate}"} : (tensor<4x8x32xf32>) -> tensor<4x8x32xf32>
    %341 = stablehlo.transpose %337, dims = [1, 0] : (tensor<32x32xf32>) -> tensor<32x32xf32>
    %342 = stablehlo.dot_general %341, %338, contracting_dims = [1] x [0], precision = [HIGHEST, HIGHEST] : (tensor<32x32xf32>, tensor<32x32xf32>) -> tensor<32x32xf32>
    %343 = stablehlo.reshape %336 : (tensor<4x8x32xf32>) -> tensor<4x8x4x8xf32>
    %344 = stablehlo.reshape %arg3 : (tensor<32x32xf32>) -> tensor<4x8x32xf32>
    %345 = stablehlo.dot_general %343, %344, batching_dims = [2] x [0], contracting_dims = [3] x [1], precision = [HIGHEST, HIGHEST] : (tensor<4x8x4x8xf32>, tensor<4x8x32xf32>) -> tensor<4x4x8x32xf32>
    %346 = stablehlo.custom_call @Sharding(%345) {backend_config = "unspecified_dims=[1,2,3]", mhlo.sharding = "{devices=[4,1,1,1,2]<=[2,4]T(1,0) last_tile_dim_replicate}"} : (tensor<4x4x8x32xf32>) -> tensor<4x4x8x32xf32>
    %347 = stablehlo.add %330, %346 : tensor<4x4x8x32xf32>
    %cst_46 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %348 = stablehlo.broadcast_in_dim %cst_46, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %349 = stablehlo.dot_general %348, %347, contracting_dims = [0] x [0], precision = [HIGHEST, HIGHEST] : (tensor<4xf32>, tensor<4x4x8x32xf32>) -> tensor<4x8x32xf32>
    %350 = stablehlo.custom_call @Sharding(%349) {backend_config = "", mhlo.sharding = "{devices=[2,1,1,4]<=[8] last_tile_dim_replicate}"} : (tensor<4x8x32xf32>) -> tensor<4x8x32xf32>
    %351 = stablehlo.custom_call @Sharding(%342) {backend_config = "", mhlo.sharding = "{devices=[4,1,2]<=[2,4]T(1,0) last_tile_dim_replicate}"} : (tensor<32x32xf32>) -> tensor<32x32xf32>
    %352 = stablehlo.broadcast_in_dim %1, dims = [2] : (tensor<32xf32>) -> tensor<1x1x32xf32>
    %353 = stablehlo.broadcast_in_dim %352, dims = [0, 1, 2] : (tensor<1x1x32xf32>) -> tensor<4x8x32xf32>
    %354 = stablehlo.multiply %350, %353 : tensor<4x8x32xf32>
    %355 = stablehlo.multiply %350, %40 : tensor<4x8x32xf32>
    %cst_47 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %356 = stablehlo.reduce(%355 init: %cst_47) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x8x32xf32>, tensor<f32>) -> tensor<32xf32>
    %357 = stablehlo.broadcast_in_dim %356, dims = [2] : (tensor<32xf32>) -> tensor<1x1x32xf32>
    %358 = stablehlo.multiply %354, %arg1 : tensor<4x8x32xf32>
    %359 = stablehlo.broadcast_in_dim %38, dims = [0, 1, 2] : (tensor<4x8x1xf32>) -> tensor<4x8x32xf32>
    %360 = stablehlo.multiply %354, %359 : tensor<4x8x32xf32>
    %cst_48 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %361 = stablehlo.reduce(%358 init: %cst_48) applies stablehlo.add across dimensions = [2] : (tensor<4x8x32xf32>, tensor<f32>) -> tensor<4x8xf32>
    %362 = stablehlo.broadcast_in_dim %361, dims = [0, 1] : (tensor<4x8xf32>) -> tensor<4x8x1xf32>
    %363 = stablehlo.add %237, %360 : tensor<4x8x32xf32>
    %364 = stablehlo.multiply %38, %38 : tensor<4x8x1xf32>
    %365 = stablehlo.multiply %364, %38 : tensor<4x8x1xf32>
    %366 = stablehlo.slice %arg11 [7:8] : (tensor<9xf64>) -> tensor<1xf64>
    %367 = stablehlo.reshape %366 : (tensor<1xf64>) -> tensor<f64>
    %368 = stablehlo.convert %367 : (tensor<f64>) -> tensor<f32>
    %369 = stablehlo.broadcast_in_dim %368, dims = [] : (tensor<f32>) -> tensor<4x8x1xf32>
    %370 = stablehlo.multiply %362, %369 : tensor<4x8x1xf32>
    %371 = stablehlo.multiply %370, %365 : tensor<4x8x1xf32>
    %372 = stablehlo.broadcast_in_dim %371, dims = [0, 1, 2] : (tensor<4x8x1xf32>) -> tensor<4x8x32xf32>
    %373 = stablehlo.slice %arg12 [4:5] : (tensor<5xi64>) -> tensor<1xi64>
    %374 = stablehlo.reshape %373 : (tensor<1xi64>) -> tensor<i64>
    %375 = stablehlo.convert %374 : (tensor<i64>) -> tensor<f32>
    %376 = stablehlo.broadcast_in_dim %375, dims = [] : (tensor<f32>) -> tensor<4x8x32xf32>
    %377 = stablehlo.divide %372, %376 : tensor<4x8x32xf32>
    %378 = stablehlo.slice %arg11 [8:9] : (tensor<9xf64>) -> tensor<1xf64>
    %379 = stablehlo.reshape %378 : (tensor<1xf64>) -> tensor<f64>
    %380 = stablehlo.convert %379 : (tensor<f64>) -> tensor<f32>
    %381 = stablehlo.broadcast_in_dim %380, dims = [] : (tensor<f32>) -> tensor<4x8x32xf32>
    %382 = stablehlo.multiply %arg1, %381 : tensor<4x8x32xf32>
    %383 = stablehlo.multiply %377, %382 : tensor<4x8x32xf32>
    %384 = stablehlo.add %363, %383 : tensor<4x8x32xf32>
    return %163, %172, %204, %210, %243, %313, %334, %351, %357, %384 : tensor<32x64xf32>, tensor<64x32xf32>, tensor<64x32xf32>, tensor<1x1x32xf32>, tensor<32x32xf32>, tensor<32x32xf32>, tensor<32x32xf32>, tensor<32x32xf32>, tensor<1x1x32xf32>, tensor<4x8x32xf32>
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

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
    %41 = call @atleast_2d(%arg3) : (tensor<32x32xf32>) -> tensor<32x32xf32>
    %42 = stablehlo.transpose %41, dims = [1, 0] : (tensor<32x32xf32>) -> tensor<32x32xf32>
    %43 = stablehlo.dot_general %40, %42, contracting_dims = [2] x [0], precision = [HIGHEST, HIGHEST] : (tensor<4x8x32xf32>, tensor<32x32xf32>) -> tensor<4x8x32xf32>
    %44 = call @atleast_2d(%arg4) : (tensor<32x32xf32>) -> tensor<32x32xf32>
    %45 = stablehlo.transpose %44, dims = [1, 0] : (tensor<32x32xf32>) -> tensor<32x32xf32>
    %46 = stablehlo.dot_general %40, %45, contracting_dims = [2] x [0], precision = [HIGHEST, HIGHEST] : (tensor<4x8x32xf32>, tensor<32x32xf32>) -> tensor<4x8x32xf32>
    %47 = call @atleast_2d(%arg5) : (tensor<32x32xf32>) -> tensor<32x32xf32>
    %48 = stablehlo.transpose %47, dims = [1, 0] : (tensor<32x32xf32>) -> tensor<32x32xf32>
    %49 = stablehlo.dot_general %40, %48, contracting_dims = [2] x [0], precision = [HIGHEST, HIGHEST] : (tensor<4x8x32xf32>, tensor<32x32xf32>) -> tensor<4x8x32xf32>
    %50 = stablehlo.reshape %43 : (tensor<4x8x32xf32>) -> tensor<4x8x4x8xf32>
    %51 = stablehlo.transpose %50, dims = [0, 2, 1, 3] : (tensor<4x8x4x8xf32>) -> tensor<4x4x8x8xf32>
    %52 = stablehlo.reshape %18 : (tensor<1x8x8xf32>) -> tensor<1x1x8x8xf32>
    %53 = stablehlo.broadcast_in_dim %52, dims = [0, 1, 2, 3] : (tensor<1x1x8x8xf32>) -> tensor<4x4x8x8xf32>
    %54 = stablehlo.multiply %51, %53 : tensor<4x4x8x8xf32>
    %55 = stablehlo.slice %51 [0:4, 0:4, 0:8, 4:8] : (tensor<4x4x8x8xf32>) -> tensor<4x4x8x4xf32>
    %56 = stablehlo.negate %55 : tensor<4x4x8x4xf32>
    %57 = stablehlo.slice %51 [0:4, 0:4, 0:8, 0:4] : (tensor<4x4x8x8xf32>) -> tensor<4x4x8x4xf32>
    %58 = stablehlo.concatenate %56, %57, dim = 3 : (tensor<4x4x8x4xf32>, tensor<4x4x8x4xf32>) -> tensor<4x4x8x8xf32>
    %59 = stablehlo.reshape %24 : (tensor<1x8x8xf32>) -> tensor<1x1x8x8xf32>
    %60 = stablehlo.broadcast_in_dim %59, dims = [0, 1, 2, 3] : (tensor<1x1x8x8xf32>) -> tensor<4x4x8x8xf32>
    %61 = stablehlo.multiply %58, %60 : tensor<4x4x8x8xf32>
    %62 = stablehlo.add %54, %61 : tensor<4x4x8x8xf32>
    %63 = stablehlo.reshape %46 : (tensor<4x8x32xf32>) -> tensor<4x8x4x8xf32>
    %64 = stablehlo.transpose %63, dims = [0, 2, 1, 3] : (tensor<4x8x4x8xf32>) -> tensor<4x4x8x8xf32>
    %65 = stablehlo.broadcast_in_dim %52, dims = [0, 1, 2, 3] : (tensor<1x1x8x8xf32>) -> tensor<4x4x8x8xf32>
    %66 = stablehlo.multiply %64, %65 : tensor<4x4x8x8xf32>
    %67 = stablehlo.slice %64 [0:4, 0:4, 0:8, 4:8] : (tensor<4x4x8x8xf32>) -> tensor<4x4x8x4xf32>
    %68 = stablehlo.negate %67 : tensor<4x4x8x4xf32>
    %69 = stablehlo.slice %64 [0:4, 0:4, 0:8, 0:4] : (tensor<4x4x8x8xf32>) -> tensor<4x4x8x4xf32>
    %70 = stablehlo.concatenate %68, %69, dim = 3 : (tensor<4x4x8x4xf32>, tensor<4x4x8x4xf32>) -> tensor<4x4x8x8xf32>
    %71 = stablehlo.broadcast_in_dim %59, dims = [0, 1, 2, 3] : (tensor<1x1x8x8xf32>) -> tensor<4x4x8x8xf32>
    %72 = stablehlo.multiply %70, %71 : tensor<4x4x8x8xf32>
    %73 = stablehlo.add %66, %72 : tensor<4x4x8x8xf32>
    %74 = stablehlo.reshape %49 : (tensor<4x8x32xf32>) -> tensor<4x8x4x8xf32>
    %75 = stablehlo.transpose %74, dims = [0, 2, 1, 3] : (tensor<4x8x4x8xf32>) -> tensor<4x4x8x8xf32>
    %76 = stablehlo.slice %arg12 [0:1] : (tensor<5xi64>) -> tensor<1xi64>
    %77 = stablehlo.reshape %76 : (tensor<1xi64>) -> tensor<i64>
    %78 = stablehlo.slice %arg12 [1:2] : (tensor<5xi64>) -> tensor<1xi64>
    %79 = stablehlo.reshape %78 : (tensor<1xi64>) -> tensor<i64>
    %80 = stablehlo.dot_general %62, %73, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [3], precision = [HIGHEST, HIGHEST] : (tensor<4x4x8x8xf32>, tensor<4x4x8x8xf32>) -> tensor<4x4x8x8xf32>
    %cst_2 = stablehlo.constant dense<0.353553385> : tensor<f32>
    %81 = stablehlo.broadcast_in_dim %cst_2, dims = [] : (tensor<f32>) -> tensor<4x4x8x8xf32>
    %82 = stablehlo.multiply %80, %81 : tensor<4x4x8x8xf32>
    %83 = stablehlo.iota dim = 0 : tensor<8x8xi32>
    %84 = stablehlo.iota dim = 1 : tensor<8x8xi32>
    %85 = stablehlo.compare LE, %84, %83, SIGNED : (tensor<8x8xi32>, tensor<8x8xi32>) -> tensor<8x8xi1>
    %cst_3 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %86 = call @_where(%85, %82, %cst_3) : (tensor<8x8xi1>, tensor<4x4x8x8xf32>, tensor<f32>) -> tensor<4x4x8x8xf32>
    %cst_4 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %87 = stablehlo.reduce(%86 init: %cst_4) applies stablehlo.maximum across dimensions = [3] : (tensor<4x4x8x8xf32>, tensor<f32>) -> tensor<4x4x8xf32>
    %88 = stablehlo.broadcast_in_dim %87, dims = [0, 1, 2] : (tensor<4x4x8xf32>) -> tensor<4x4x8x1xf32>
    %89 = stablehlo.broadcast_in_dim %88, dims = [0, 1, 2, 3] : (tensor<4x4x8x1xf32>) -> tensor<4x4x8x8xf32>
    %90 = stablehlo.subtract %86, %89 : tensor<4x4x8x8xf32>
    %91 = stablehlo.exponential %90 : tensor<4x4x8x8xf32>
    %cst_5 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %92 = stablehlo.reduce(%91 init: %cst_5) applies stablehlo.add across dimensions = [3] : (tensor<4x4x8x8xf32>, tensor<f32>) -> tensor<4x4x8xf32>
    %93 = stablehlo.broadcast_in_dim %92, dims = [0, 1, 2] : (tensor<4x4x8xf32>) -> tensor<4x4x8x1xf32>
    %94 = stablehlo.log %93 : tensor<4x4x8x1xf32>
    %95 = stablehlo.add %88, %94 : tensor<4x4x8x1xf32>
    %96 = stablehlo.reshape %95 : (tensor<4x4x8x1xf32>) -> tensor<4x4x8xf32>
    %97 = stablehlo.broadcast_in_dim %93, dims = [0, 1, 2, 3] : (tensor<4x4x8x1xf32>) -> tensor<4x4x8x8xf32>
    %98 = stablehlo.divide %91, %97 : tensor<4x4x8x8xf32>
    %99 = stablehlo.dot_general %98, %75, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [2], precision = [HIGHEST, HIGHEST] : (tensor<4x4x8x8xf32>, tensor<4x4x8x8xf32>) -> tensor<4x4x8x8xf32>
    %100 = stablehlo.broadcast_in_dim %77, dims = [] : (tensor<i64>) -> tensor<1xi64>
    %101 = stablehlo.broadcast_in_dim %79, dims = [] : (tensor<i64>) -> tensor<1xi64>
    %102 = stablehlo.concatenate %100, %101, dim = 0 : (tensor<1xi64>, tensor<1xi64>) -> tensor<2xi64>
    %103 = stablehlo.transpose %99, dims = [0, 2, 1, 3] : (tensor<4x4x8x8xf32>) -> tensor<4x8x4x8xf32>
    %104 = stablehlo.reshape %103 : (tensor<4x8x4x8xf32>) -> tensor<4x8x32xf32>
    %105 = call @atleast_2d(%arg6) : (tensor<32x32xf32>) -> tensor<32x32xf32>
    %106 = stablehlo.transpose %105, dims = [1, 0] : (tensor<32x32xf32>) -> tensor<32x32xf32>
    %107 = stablehlo.dot_general %104, %106, contracting_dims = [2] x [0], precision = [HIGHEST, HIGHEST] : (tensor<4x8x32xf32>, tensor<32x32xf32>) -> tensor<4x8x32xf32>
    %108 = stablehlo.add %arg1, %107 : tensor<4x8x32xf32>
    %109 = stablehlo.multiply %108, %108 : tensor<4x8x32xf32>
    %cst_6 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %110 = stablehlo.reduce(%109 init: %cst_6) applies stablehlo.add across dimensions = [2] : (tensor<4x8x32xf32>, tensor<f32>) -> tensor<4x8xf32>
    %111 = stablehlo.broadcast_in_dim %110, dims = [0, 1] : (tensor<4x8xf32>) -> tensor<4x8x1xf32>
    %cst_7 = stablehlo.constant dense<3.200000e+01> : tensor<f32>
    %112 = stablehlo.broadcast_in_dim %cst_7, dims = [] : (tensor<f32>) -> tensor<4x8x1xf32>
    %113 = stablehlo.divide %111, %112 : tensor<4x8x1xf32>
    %114 = stablehlo.slice %arg11 [3:4] : (tensor<9xf64>) -> tensor<1xf64>
    %115 = stablehlo.reshape %114 : (tensor<1xf64>) -> tensor<f64>
    %116 = stablehlo.convert %115 : (tensor<f64>) -> tensor<f32>
    %117 = stablehlo.broadcast_in_dim %116, dims = [] : (tensor<f32>) -> tensor<4x8x1xf32>
    %118 = stablehlo.add %113, %117 : tensor<4x8x1xf32>
    %119 = stablehlo.rsqrt %118 : tensor<4x8x1xf32>
    %120 = stablehlo.broadcast_in_dim %119, dims = [0, 1, 2] : (tensor<4x8x1xf32>) -> tensor<4x8x32xf32>
    %121 = stablehlo.multiply %108, %120 : tensor<4x8x32xf32>
    %122 = stablehlo.broadcast_in_dim %arg7, dims = [2] : (tensor<32xf32>) -> tensor<1x1x32xf32>
    %123 = stablehlo.broadcast_in_dim %122, dims = [0, 1, 2] : (tensor<1x1x32xf32>) -> tensor<4x8x32xf32>
    %124 = stablehlo.multiply %123, %121 : tensor<4x8x32xf32>
    %125 = call @atleast_2d_0(%arg8) : (tensor<64x32xf32>) -> tensor<64x32xf32>
    %126 = stablehlo.transpose %125, dims = [1, 0] : (tensor<64x32xf32>) -> tensor<32x64xf32>
    %127 = stablehlo.dot_general %124, %126, contracting_dims = [2] x [0], precision = [HIGHEST, HIGHEST] : (tensor<4x8x32xf32>, tensor<32x64xf32>) -> tensor<4x8x64xf32>
    %128 = stablehlo.negate %127 : tensor<4x8x64xf32>
    %129 = stablehlo.exponential %128 : tensor<4x8x64xf32>
    %cst_8 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %130 = stablehlo.broadcast_in_dim %cst_8, dims = [] : (tensor<f32>) -> tensor<4x8x64xf32>
    %131 = stablehlo.add %130, %129 : tensor<4x8x64xf32>
    %cst_9 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %132 = stablehlo.broadcast_in_dim %cst_9, dims = [] : (tensor<f32>) -> tensor<4x8x64xf32>
    %133 = stablehlo.divide %132, %131 : tensor<4x8x64xf32>
    %134 = stablehlo.multiply %127, %133 : tensor<4x8x64xf32>
    %135 = call @atleast_2d_0(%arg9) : (tensor<64x32xf32>) -> tensor<64x32xf32>
    %136 = stablehlo.transpose %135, dims = [1, 0] : (tensor<64x32xf32>) -> tensor<32x64xf32>
    %137 = stablehlo.dot_general %124, %136, contracting_dims = [2] x [0], precision = [HIGHEST, HIGHEST] : (tensor<4x8x32xf32>, tensor<32x64xf32>) -> tensor<4x8x64xf32>
    %138 = stablehlo.multiply %134, %137 : tensor<4x8x64xf32>
    %139 = call @atleast_2d_1(%arg10) : (tensor<32x64xf32>) -> tensor<32x64xf32>
    %140 = stablehlo.transpose %139, dims = [1, 0] : (tensor<32x64xf32>) -> tensor<64x32xf32>
    %141 = stablehlo.dot_general %138, %140, contracting_dims = [2] x [0], precision = [HIGHEST, HIGHEST] : (tensor<4x8x64xf32>, tensor<64x32xf32>) -> tensor<4x8x32xf32>
    %142 = stablehlo.add %108, %141 : tensor<4x8x32xf32>
    %cst_10 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %143 = stablehlo.broadcast_in_dim %cst_10, dims = [] : (tensor<f32>) -> tensor<4x8x32xf32>
    %144 = stablehlo.slice %arg12 [2:3] : (tensor<5xi64>) -> tensor<1xi64>
    %145 = stablehlo.reshape %144 : (tensor<1xi64>) -> tensor<i64>
    %146 = stablehlo.convert %145 : (tensor<i64>) -> tensor<f32>
    %147 = stablehlo.broadcast_in_dim %146, dims = [] : (tensor<f32>) -> tensor<4x8x32xf32>
    %148 = stablehlo.divide %143, %147 : tensor<4x8x32xf32>
    %149 = stablehlo.slice %arg11 [4:5] : (tensor<9xf64>) -> tensor<1xf64>
    %150 = stablehlo.reshape %149 : (tensor<1xf64>) -> tensor<f64>
    %151 = stablehlo.convert %150 : (tensor<f64>) -> tensor<f32>
    %152 = stablehlo.broadcast_in_dim %151, dims = [] : (tensor<f32>) -> tensor<4x8x32xf32>
    %153 = stablehlo.multiply %142, %152 : tensor<4x8x32xf32>
    %154 = stablehlo.multiply %148, %153 : tensor<4x8x32xf32>
    %155 = stablehlo.reshape %154 : (tensor<4x8x32xf32>) -> tensor<32x32xf32>
    %156 = stablehlo.reshape %138 : (tensor<4x8x64xf32>) -> tensor<32x64xf32>
    %157 = stablehlo.dot_general %154, %arg10, contracting_dims = [2] x [0], precision = [HIGHEST, HIGHEST] : (tensor<4x8x32xf32>, tensor<32x64xf32>) -> tensor<4x8x64xf32>
    %158 = stablehlo.transpose %155, dims = [1, 0] : (tensor<32x32xf32>) -> tensor<32x32xf32>
    %159 = stablehlo.dot_general %158, %156, contracting_dims = [1] x [0], precision = [HIGHEST, HIGHEST] : (tensor<32x32xf32>, tensor<32x64xf32>) -> tensor<32x64xf32>
    %160 = stablehlo.custom_call @Sharding(%159) {backend_config = "", mhlo.sharding = "{devices=[1,4,2]<=[2,4]T(1,0) last_tile_dim_replicate}"} : (tensor<32x64xf32>) -> tensor<32x64xf32>
    %161 = stablehlo.multiply %157, %134 : tensor<4x8x64xf32>
    %162 = stablehlo.multiply %157, %137 : tensor<4x8x64xf32>
    %163 = stablehlo.reshape %161 : (tensor<4x8x64xf32>) -> tensor<32x64xf32>
    %164 = stablehlo.reshape %124 : (tensor<4x8x32xf32>) -> tensor<32x32xf32>
    %165 = stablehlo.dot_general %161, %arg9, contracting_dims = [2] x [0], precision = [HIGHEST, HIGHEST] : (tensor<4x8x64xf32>, tensor<64x32xf32>) -> tensor<4x8x32xf32>
    %166 = stablehlo.custom_call @Sharding(%165) {backend_config = "", mhlo.sharding = "{devices=[2,1,1,4]<=[8] last_tile_dim_replicate}"} : (tensor<4x8x32xf32>) -> tensor<4x8x32xf32>
    %167 = stablehlo.transpose %163, dims = [1, 0] : (tensor<32x64xf32>) -> tensor<64x32xf32>
    %168 = stablehlo.dot_general %167, %164, contracting_dims = [1] x [0], precision = [HIGHEST, HIGHEST] : (tensor<64x32xf32>, tensor<32x32xf32>) -> tensor<64x32xf32>
    %169 = stablehlo.custom_call @Sharding(%168) {backend_config = "", mhlo.sharding = "{devices=[4,1,2]<=[2,4]T(1,0) last_tile_dim_replicate}"} : (tensor<64x32xf32>) -> tensor<64x32xf32>
    %170 = stablehlo.negate %127 : tensor<4x8x64xf32>
    %171 = stablehlo.exponential %170 : tensor<4x8x64xf32>
    %cst_11 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %172 = stablehlo.broadcast_in_dim %cst_11, dims = [] : (tensor<f32>) -> tensor<4x8x64xf32>
    %173 = stablehlo.add %172, %171 : tensor<4x8x64xf32>
    %cst_12 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %174 = stablehlo.broadcast_in_dim %cst_12, dims = [] : (tensor<f32>) -> tensor<4x8x64xf32>
    %175 = stablehlo.divide %174, %173 : tensor<4x8x64xf32>
    %176 = stablehlo.multiply %162, %175 : tensor<4x8x64xf32>
    %cst_13 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %177 = stablehlo.broadcast_in_dim %cst_13, dims = [] : (tensor<f32>) -> tensor<4x8x64xf32>
    %178 = stablehlo.subtract %177, %175 : tensor<4x8x64xf32>
    %179 = stablehlo.multiply %127, %178 : tensor<4x8x64xf32>
    %cst_14 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %180 = stablehlo.broadcast_in_dim %cst_14, dims = [] : (tensor<f32>) -> tensor<4x8x64xf32>
    %181 = stablehlo.add %180, %179 : tensor<4x8x64xf32>
    %182 = stablehlo.multiply %176, %181 : tensor<4x8x64xf32>
    %183 = stablehlo.reshape %182 : (tensor<4x8x64xf32>) -> tensor<32x64xf32>
    %184 = stablehlo.reshape %124 : (tensor<4x8x32xf32>) -> tensor<32x32xf32>
    %185 = stablehlo.dot_general %182, %arg8, contracting_dims = [2] x [0], precision = [HIGHEST, HIGHEST] : (tensor<4x8x64xf32>, tensor<64x32xf32>) -> tensor<4x8x32xf32>
    %186 = stablehlo.custom_call @Sharding(%185) {backend_config = "", mhlo.sharding = "{devices=[2,1,1,4]<=[8] last_tile_dim_replicate}"} : (tensor<4x8x32xf32>) -> tensor<4x8x32xf32>
    %187 = stablehlo.transpose %183, dims = [1, 0] : (tensor<32x64xf32>) -> tensor<64x32xf32>
    %188 = stablehlo.dot_general %187, %184, contracting_dims = [1] x [0], precision = [HIGHEST, HIGHEST] : (tensor<64x32xf32>, tensor<32x32xf32>) -> tensor<64x32xf32>
    %189 = stablehlo.reshape %161 : (tensor<4x8x64xf32>) -> tensor<4x8x4x16xf32>
    %190 = stablehlo.reshape %arg9 : (tensor<64x32xf32>) -> tensor<4x16x32xf32>
    %191 = stablehlo.dot_general %189, %190, batching_dims = [2] x [0], contracting_dims = [3] x [1], precision = [HIGHEST, HIGHEST] : (tensor<4x8x4x16xf32>, tensor<4x16x32xf32>) -> tensor<4x4x8x32xf32>
    %192 = stablehlo.custom_call @Sharding(%191) {backend_config = "unspecified_dims=[1,2,3]", mhlo.sharding = "{devices=[4,1,1,1,2]<=[2,4]T(1,0) last_tile_dim_replicate}"} : (tensor<4x4x8x32xf32>) -> tensor<4x4x8x32xf32>
    %193 = stablehlo.reshape %182 : (tensor<4x8x64xf32>) -> tensor<4x8x4x16xf32>
    %194 = stablehlo.reshape %arg8 : (tensor<64x32xf32>) -> tensor<4x16x32xf32>
    %195 = stablehlo.dot_general %193, %194, batching_dims = [2] x [0], contracting_dims = [3] x [1], precision = [HIGHEST, HIGHEST] : (tensor<4x8x4x16xf32>, tensor<4x16x32xf32>) -> tensor<4x4x8x32xf32>
    %196 = stablehlo.custom_call @Sharding(%195) {backend_config = "unspecified_dims=[1,2,3]", mhlo.sharding = "{devices=[4,1,1,1,2]<=[2,4]T(1,0) last_tile_dim_replicate}"} : (tensor<4x4x8x32xf32>) -> tensor<4x4x8x32xf32>
    %197 = stablehlo.add %192, %196 : tensor<4x4x8x32xf32>
    %cst_15 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %198 = stablehlo.broadcast_in_dim %cst_15, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %199 = stablehlo.dot_general %198, %197, contracting_dims = [0] x [0], precision = [HIGHEST, HIGHEST] : (tensor<4xf32>, tensor<4x4x8x32xf32>) -> tensor<4x8x32xf32>
    %200 = stablehlo.custom_call @Sharding(%199) {backend_config = "", mhlo.sharding = "{devices=[2,1,1,4]<=[8] last_tile_dim_replicate}"} : (tensor<4x8x32xf32>) -> tensor<4x8x32xf32>
    %201 = stablehlo.custom_call @Sharding(%188) {backend_config = "", mhlo.sharding = "{devices=[4,1,2]<=[2,4]T(1,0) last_tile_dim_replicate}"} : (tensor<64x32xf32>) -> tensor<64x32xf32>
    %202 = stablehlo.broadcast_in_dim %arg7, dims = [2] : (tensor<32xf32>) -> tensor<1x1x32xf32>
    %203 = stablehlo.broadcast_in_dim %202, dims = [0, 1, 2] : (tensor<1x1x32xf32>) -> tensor<4x8x32xf32>
    %204 = stablehlo.multiply %200, %203 : tensor<4x8x32xf32>
    %205 = stablehlo.multiply %200, %121 : tensor<4x8x32xf32>
    %cst_16 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %206 = stablehlo.reduce(%205 init: %cst_16) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x8x32xf32>, tensor<f32>) -> tensor<32xf32>
    %207 = stablehlo.broadcast_in_dim %206, dims = [2] : (tensor<32xf32>) -> tensor<1x1x32xf32>
    %208 = stablehlo.multiply %204, %108 : tensor<4x8x32xf32>
    %209 = stablehlo.broadcast_in_dim %119, dims = [0, 1, 2] : (tensor<4x8x1xf32>) -> tensor<4x8x32xf32>
    %210 = stablehlo.multiply %204, %209 : tensor<4x8x32xf32>
    %cst_17 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %211 = stablehlo.reduce(%208 init: %cst_17) applies stablehlo.add across dimensions = [2] : (tensor<4x8x32xf32>, tensor<f32>) -> tensor<4x8xf32>
    %212 = stablehlo.broadcast_in_dim %211, dims = [0, 1] : (tensor<4x8xf32>) -> tensor<4x8x1xf32>
    %213 = stablehlo.add %154, %210 : tensor<4x8x32xf32>
    %214 = stablehlo.multiply %119, %119 : tensor<4x8x1xf32>
    %215 = stablehlo.multiply %214, %119 : tensor<4x8x1xf32>
    %216 = stablehlo.slice %arg11 [5:6] : (tensor<9xf64>) -> tensor<1xf64>
    %217 = stablehlo.reshape %216 : (tensor<1xf64>) -> tensor<f64>
    %218 = stablehlo.convert %217 : (tensor<f64>) -> tensor<f32>
    %219 = stablehlo.broadcast_in_dim %218, dims = [] : (tensor<f32>) -> tensor<4x8x1xf32>
    %220 = stablehlo.multiply %212, %219 : tensor<4x8x1xf32>
    %221 = stablehlo.multiply %220, %215 : tensor<4x8x1xf32>
    %222 = stablehlo.broadcast_in_dim %221, dims = [0, 1, 2] : (tensor<4x8x1xf32>) -> tensor<4x8x32xf32>
    %223 = stablehlo.slice %arg12 [3:4] : (tensor<5xi64>) -> tensor<1xi64>
    %224 = stablehlo.reshape %223 : (tensor<1xi64>) -> tensor<i64>
    %225 = stablehlo.convert %224 : (tensor<i64>) -> tensor<f32>
    %226 = stablehlo.broadcast_in_dim %225, dims = [] : (tensor<f32>) -> tensor<4x8x32xf32>
    %227 = stablehlo.divide %222, %226 : tensor<4x8x32xf32>
    %228 = stablehlo.slice %arg11 [6:7] : (tensor<9xf64>) -> tensor<1xf64>
    %229 = stablehlo.reshape %228 : (tensor<1xf64>) -> tensor<f64>
    %230 = stablehlo.convert %229 : (tensor<f64>) -> tensor<f32>
    %231 = stablehlo.broadcast_in_dim %230, dims = [] : (tensor<f32>) -> tensor<4x8x32xf32>
    %232 = stablehlo.multiply %108, %231 : tensor<4x8x32xf32>
    %233 = stablehlo.multiply %227, %232 : tensor<4x8x32xf32>
    %234 = stablehlo.add %213, %233 : tensor<4x8x32xf32>
    %235 = stablehlo.reshape %234 : (tensor<4x8x32xf32>) -> tensor<32x32xf32>
    %236 = stablehlo.reshape %104 : (tensor<4x8x32xf32>) -> tensor<32x32xf32>
    %237 = stablehlo.dot_general %234, %arg6, contracting_dims = [2] x [0], precision = [HIGHEST, HIGHEST] : (tensor<4x8x32xf32>, tensor<32x32xf32>) -> tensor<4x8x32xf32>
    %238 = stablehlo.transpose %235, dims = [1, 0] : (tensor<32x32xf32>) -> tensor<32x32xf32>
    %239 = stablehlo.dot_general %238, %236, contracting_dims = [1] x [0], precision = [HIGHEST, HIGHEST] : (tensor<32x32xf32>, tensor<32x32xf32>) -> tensor<32x32xf32>
    %240 = stablehlo.custom_call @Sharding(%239) {backend_config = "", mhlo.sharding = "{devices=[1,4,2]<=[2,4]T(1,0) last_tile_dim_replicate}"} : (tensor<32x32xf32>) -> tensor<32x32xf32>
    %241 = stablehlo.reshape %237 : (tensor<4x8x32xf32>) -> tensor<4x8x4x8xf32>
    %242 = stablehlo.transpose %241, dims = [0, 2, 1, 3] : (tensor<4x8x4x8xf32>) -> tensor<4x4x8x8xf32>
    %243 = stablehlo.dot_general %62, %73, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [3], precision = [HIGHEST, HIGHEST] : (tensor<4x4x8x8xf32>, tensor<4x4x8x8xf32>) -> tensor<4x4x8x8xf32>
    %cst_18 = stablehlo.constant dense<0.353553385> : tensor<f32>
    %244 = stablehlo.broadcast_in_dim %cst_18, dims = [] : (tensor<f32>) -> tensor<4x4x8x8xf32>
    %245 = stablehlo.multiply %243, %244 : tensor<4x4x8x8xf32>
    %246 = stablehlo.iota dim = 0 : tensor<8x8xi32>
    %247 = stablehlo.iota dim = 1 : tensor<8x8xi32>
    %248 = stablehlo.compare LE, %247, %246, SIGNED : (tensor<8x8xi32>, tensor<8x8xi32>) -> tensor<8x8xi1>
    %cst_19 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %249 = call @_where(%248, %245, %cst_19) : (tensor<8x8xi1>, tensor<4x4x8x8xf32>, tensor<f32>) -> tensor<4x4x8x8xf32>
    %cst_20 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %250 = stablehlo.reduce(%249 init: %cst_20) applies stablehlo.maximum across dimensions = [3] : (tensor<4x4x8x8xf32>, tensor<f32>) -> tensor<4x4x8xf32>
    %251 = stablehlo.broadcast_in_dim %250, dims = [0, 1, 2] : (tensor<4x4x8xf32>) -> tensor<4x4x8x1xf32>
    %252 = stablehlo.broadcast_in_dim %251, dims = [0, 1, 2, 3] : (tensor<4x4x8x1xf32>) -> tensor<4x4x8x8xf32>
    %253 = stablehlo.subtract %249, %252 : tensor<4x4x8x8xf32>
    %254 = stablehlo.exponential %253 : tensor<4x4x8x8xf32>
    %cst_21 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %255 = stablehlo.reduce(%254 init: %cst_21) applies stablehlo.add across dimensions = [3] : (tensor<4x4x8x8xf32>, tensor<f32>) -> tensor<4x4x8xf32>
    %256 = stablehlo.broadcast_in_dim %255, dims = [0, 1, 2] : (tensor<4x4x8xf32>) -> tensor<4x4x8x1xf32>
    %257 = stablehlo.log %256 : tensor<4x4x8x1xf32>
    %258 = stablehlo.add %251, %257 : tensor<4x4x8x1xf32>
    %259 = stablehlo.reshape %258 : (tensor<4x4x8x1xf32>) -> tensor<4x4x8xf32>
    %260 = stablehlo.broadcast_in_dim %256, dims = [0, 1, 2, 3] : (tensor<4x4x8x1xf32>) -> tensor<4x4x8x8xf32>
    %261 = stablehlo.divide %254, %260 : tensor<4x4x8x8xf32>
    %262 = stablehlo.dot_general %261, %242, batching_dims = [0, 1] x [0, 1], contracting_dims = [2] x [2], precision = [HIGHEST, HIGHEST] : (tensor<4x4x8x8xf32>, tensor<4x4x8x8xf32>) -> tensor<4x4x8x8xf32>
    %263 = stablehlo.dot_general %242, %75, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [3], precision = [HIGHEST, HIGHEST] : (tensor<4x4x8x8xf32>, tensor<4x4x8x8xf32>) -> tensor<4x4x8x8xf32>
    %264 = stablehlo.multiply %242, %99 : tensor<4x4x8x8xf32>
    %cst_22 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %265 = stablehlo.reduce(%264 init: %cst_22) applies stablehlo.add across dimensions = [3] : (tensor<4x4x8x8xf32>, tensor<f32>) -> tensor<4x4x8xf32>
    %266 = stablehlo.broadcast_in_dim %265, dims = [0, 1, 2] : (tensor<4x4x8xf32>) -> tensor<4x4x8x1xf32>
    %267 = stablehlo.broadcast_in_dim %266, dims = [0, 1, 2, 3] : (tensor<4x4x8x1xf32>) -> tensor<4x4x8x8xf32>
    %268 = stablehlo.subtract %263, %267 : tensor<4x4x8x8xf32>
    %269 = stablehlo.multiply %261, %268 : tensor<4x4x8x8xf32>
    %270 = stablehlo.dot_general %269, %73, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [2], precision = [HIGHEST, HIGHEST] : (tensor<4x4x8x8xf32>, tensor<4x4x8x8xf32>) -> tensor<4x4x8x8xf32>
    %cst_23 = stablehlo.constant dense<0.353553385> : tensor<f32>
    %271 = stablehlo.broadcast_in_dim %cst_23, dims = [] : (tensor<f32>) -> tensor<4x4x8x8xf32>
    %272 = stablehlo.multiply %271, %270 : tensor<4x4x8x8xf32>
    %273 = stablehlo.dot_general %269, %62, batching_dims = [0, 1] x [0, 1], contracting_dims = [2] x [2], precision = [HIGHEST, HIGHEST] : (tensor<4x4x8x8xf32>, tensor<4x4x8x8xf32>) -> tensor<4x4x8x8xf32>
    %cst_24 = stablehlo.constant dense<0.353553385> : tensor<f32>
    %274 = stablehlo.broadcast_in_dim %cst_24, dims = [] : (tensor<f32>) -> tensor<4x4x8x8xf32>
    %275 = stablehlo.multiply %274, %273 : tensor<4x4x8x8xf32>
    %276 = stablehlo.broadcast_in_dim %59, dims = [0, 1, 2, 3] : (tensor<1x1x8x8xf32>) -> tensor<4x4x8x8xf32>
    %277 = stablehlo.multiply %275, %276 : tensor<4x4x8x8xf32>
    %278 = stablehlo.slice %277 [0:4, 0:4, 0:8, 0:4] : (tensor<4x4x8x8xf32>) -> tensor<4x4x8x4xf32>
    %279 = stablehlo.negate %278 : tensor<4x4x8x4xf32>
    %cst_25 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %280 = stablehlo.broadcast_in_dim %cst_25, dims = [] : (tensor<f32>) -> tensor<4x4x8x8xf32>
    %c_26 = stablehlo.constant dense<0> : tensor<i64>
    %c_27 = stablehlo.constant dense<0> : tensor<i64>
    %c_28 = stablehlo.constant dense<0> : tensor<i64>
    %c_29 = stablehlo.constant dense<4> : tensor<i64>
    %281 = stablehlo.dynamic_update_slice %280, %279, %c_26, %c_27, %c_28, %c_29 : (tensor<4x4x8x8xf32>, tensor<4x4x8x4xf32>, tensor<i64>, tensor<i64>, tensor<i64>, tensor<i64>) -> tensor<4x4x8x8xf32>
    %282 = stablehlo.slice %277 [0:4, 0:4, 0:8, 4:8] : (tensor<4x4x8x8xf32>) -> tensor<4x4x8x4xf32>
    %cst_30 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %283 = stablehlo.broadcast_in_dim %cst_30, dims = [] : (tensor<f32>) -> tensor<4x4x8x8xf32>
    %c_31 = stablehlo.constant dense<0> : tensor<i64>
    %c_32 = stablehlo.constant dense<0> : tensor<i64>
    %c_33 = stablehlo.constant dense<0> : tensor<i64>
    %c_34 = stablehlo.constant dense<0> : tensor<i64>
    %284 = stablehlo.dynamic_update_slice %283, %282, %c_31, %c_32, %c_33, %c_34 : (tensor<4x4x8x8xf32>, tensor<4x4x8x4xf32>, tensor<i64>, tensor<i64>, tensor<i64>, tensor<i64>) -> tensor<4x4x8x8xf32>
    %285 = stablehlo.add %281, %284 : tensor<4x4x8x8xf32>
    %286 = stablehlo.broadcast_in_dim %52, dims = [0, 1, 2, 3] : (tensor<1x1x8x8xf32>) -> tensor<4x4x8x8xf32>
    %287 = stablehlo.multiply %275, %286 : tensor<4x4x8x8xf32>
    %288 = stablehlo.add %285, %287 : tensor<4x4x8x8xf32>
    %289 = stablehlo.broadcast_in_dim %59, dims = [0, 1, 2, 3] : (tensor<1x1x8x8xf32>) -> tensor<4x4x8x8xf32>
    %290 = stablehlo.multiply %272, %289 : tensor<4x4x8x8xf32>
    %291 = stablehlo.slice %290 [0:4, 0:4, 0:8, 0:4] : (tensor<4x4x8x8xf32>) -> tensor<4x4x8x4xf32>
    %292 = stablehlo.negate %291 : tensor<4x4x8x4xf32>
    %cst_35 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %293 = stablehlo.broadcast_in_dim %cst_35, dims = [] : (tensor<f32>) -> tensor<4x4x8x8xf32>
    %c_36 = stablehlo.constant dense<0> : tensor<i64>
    %c_37 = stablehlo.constant dense<0> : tensor<i64>
    %c_38 = stablehlo.constant dense<0> : tensor<i64>
    %c_39 = stablehlo.constant dense<4> : tensor<i64>
    %294 = stablehlo.dynamic_update_slice %293, %292, %c_36, %c_37, %c_38, %c_39 : (tensor<4x4x8x8xf32>, tensor<4x4x8x4xf32>, tensor<i64>, tensor<i64>, tensor<i64>, tensor<i64>) -> tensor<4x4x8x8xf32>
    %295 = stablehlo.slice %290 [0:4, 0:4, 0:8, 4:8] : (tensor<4x4x8x8xf32>) -> tensor<4x4x8x4xf32>
    %cst_40 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %296 = stablehlo.broadcast_in_dim %cst_40, dims = [] : (tensor<f32>) -> tensor<4x4x8x8xf32>
    %c_41 = stablehlo.constant dense<0> : tensor<i64>
    %c_42 = stablehlo.constant dense<0> : tensor<i64>
    %c_43 = stablehlo.constant dense<0> : tensor<i64>
    %c_44 = stablehlo.constant dense<0> : tensor<i64>
    %297 = stablehlo.dynamic_update_slice %296, %295, %c_41, %c_42, %c_43, %c_44 : (tensor<4x4x8x8xf32>, tensor<4x4x8x4xf32>, tensor<i64>, tensor<i64>, tensor<i64>, tensor<i64>) -> tensor<4x4x8x8xf32>
    %298 = stablehlo.add %294, %297 : tensor<4x4x8x8xf32>
    %299 = stablehlo.broadcast_in_dim %52, dims = [0, 1, 2, 3] : (tensor<1x1x8x8xf32>) -> tensor<4x4x8x8xf32>
    %300 = stablehlo.multiply %272, %299 : tensor<4x4x8x8xf32>
    %301 = stablehlo.add %298, %300 : tensor<4x4x8x8xf32>
    %302 = stablehlo.transpose %262, dims = [0, 2, 1, 3] : (tensor<4x4x8x8xf32>) -> tensor<4x8x4x8xf32>
    %303 = stablehlo.reshape %302 : (tensor<4x8x4x8xf32>) -> tensor<4x8x32xf32>
    %304 = stablehlo.reshape %303 : (tensor<4x8x32xf32>) -> tensor<32x32xf32>
    %305 = stablehlo.reshape %40 : (tensor<4x8x32xf32>) -> tensor<32x32xf32>
    %306 = stablehlo.dot_general %303, %arg5, contracting_dims = [2] x [0], precision = [HIGHEST, HIGHEST] : (tensor<4x8x32xf32>, tensor<32x32xf32>) -> tensor<4x8x32xf32>
    %307 = stablehlo.custom_call @Sharding(%306) {backend_config = "", mhlo.sharding = "{devices=[2,1,1,4]<=[8] last_tile_dim_replicate}"} : (tensor<4x8x32xf32>) -> tensor<4x8x32xf32>
    %308 = stablehlo.transpose %304, dims = [1, 0] : (tensor<32x32xf32>) -> tensor<32x32xf32>
    %309 = stablehlo.dot_general %308, %305, contracting_dims = [1] x [0], precision = [HIGHEST, HIGHEST] : (tensor<32x32xf32>, tensor<32x32xf32>) -> tensor<32x32xf32>
    %310 = stablehlo.custom_call @Sharding(%309) {backend_config = "", mhlo.sharding = "{devices=[4,1,2]<=[2,4]T(1,0) last_tile_dim_replicate}"} : (tensor<32x32xf32>) -> tensor<32x32xf32>
    %311 = stablehlo.transpose %288, dims = [0, 2, 1, 3] : (tensor<4x4x8x8xf32>) -> tensor<4x8x4x8xf32>
    %312 = stablehlo.reshape %311 : (tensor<4x8x4x8xf32>) -> tensor<4x8x32xf32>
    %313 = stablehlo.reshape %312 : (tensor<4x8x32xf32>) -> tensor<32x32xf32>
    %314 = stablehlo.reshape %40 : (tensor<4x8x32xf32>) -> tensor<32x32xf32>
    %315 = stablehlo.dot_general %312, %arg4, contracting_dims = [2] x [0], precision = [HIGHEST, HIGHEST] : (tensor<4x8x32xf32>, tensor<32x32xf32>) -> tensor<4x8x32xf32>
    %316 = stablehlo.custom_call @Sharding(%315) {backend_config = "", mhlo.sharding = "{devices=[2,1,1,4]<=[8] last_tile_dim_replicate}"} : (tensor<4x8x32xf32>) -> tensor<4x8x32xf32>
    %317 = stablehlo.transpose %313, dims = [1, 0] : (tensor<32x32xf32>) -> tensor<32x32xf32>
    %318 = stablehlo.dot_general %317, %314, contracting_dims = [1] x [0], precision = [HIGHEST, HIGHEST] : (tensor<32x32xf32>, tensor<32x32xf32>) -> tensor<32x32xf32>
    %319 = stablehlo.reshape %303 : (tensor<4x8x32xf32>) -> tensor<4x8x4x8xf32>
    %320 = stablehlo.reshape %arg5 : (tensor<32x32xf32>) -> tensor<4x8x32xf32>
    %321 = stablehlo.dot_general %319, %320, batching_dims = [2] x [0], contracting_dims = [3] x [1], precision = [HIGHEST, HIGHEST] : (tensor<4x8x4x8xf32>, tensor<4x8x32xf32>) -> tensor<4x4x8x32xf32>
    %322 = stablehlo.custom_call @Sharding(%321) {backend_config = "unspecified_dims=[1,2,3]", mhlo.sharding = "{devices=[4,1,1,1,2]<=[2,4]T(1,0) last_tile_dim_replicate}"} : (tensor<4x4x8x32xf32>) -> tensor<4x4x8x32xf32>
    %323 = stablehlo.reshape %312 : (tensor<4x8x32xf32>) -> tensor<4x8x4x8xf32>
    %324 = stablehlo.reshape %arg4 : (tensor<32x32xf32>) -> tensor<4x8x32xf32>
    %325 = stablehlo.dot_general %323, %324, batching_dims = [2] x [0], contracting_dims = [3] x [1], precision = [HIGHEST, HIGHEST] : (tensor<4x8x4x8xf32>, tensor<4x8x32xf32>) -> tensor<4x4x8x32xf32>
    %326 = stablehlo.custom_call @Sharding(%325) {backend_config = "unspecified_dims=[1,2,3]", mhlo.sharding = "{devices=[4,1,1,1,2]<=[2,4]T(1,0) last_tile_dim_replicate}"} : (tensor<4x4x8x32xf32>) -> tensor<4x4x8x32xf32>
    %327 = stablehlo.add %322, %326 : tensor<4x4x8x32xf32>
    %cst_45 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %328 = stablehlo.broadcast_in_dim %cst_45, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %329 = stablehlo.dot_general %328, %327, contracting_dims = [0] x [0], precision = [HIGHEST, HIGHEST] : (tensor<4xf32>, tensor<4x4x8x32xf32>) -> tensor<4x8x32xf32>
    %330 = stablehlo.custom_call @Sharding(%329) {backend_config = "", mhlo.sharding = "{devices=[2,1,1,4]<=[8] last_tile_dim_replicate}"} : (tensor<4x8x32xf32>) -> tensor<4x8x32xf32>
    %331 = stablehlo.custom_call @Sharding(%318) {backend_config = "", mhlo.sharding = "{devices=[4,1,2]<=[2,4]T(1,0) last_tile_dim_replicate}"} : (tensor<32x32xf32>) -> tensor<32x32xf32>
    %332 = stablehlo.transpose %301, dims = [0, 2, 1, 3] : (tensor<4x4x8x8xf32>) -> tensor<4x8x4x8xf32>
    %333 = stablehlo.reshape %332 : (tensor<4x8x4x8xf32>) -> tensor<4x8x32xf32>
    %334 = stablehlo.reshape %333 : (tensor<4x8x32xf32>) -> tensor<32x32xf32>
    %335 = stablehlo.reshape %40 : (tensor<4x8x32xf32>) -> tensor<32x32xf32>
    %336 = stablehlo.dot_general %333, %arg3, contracting_dims = [2] x [0], precision = [HIGHEST, HIGHEST] : (tensor<4x8x32xf32>, tensor<32x32xf32>) -> tensor<4x8x32xf32>
    %337 = stablehlo.custom_call @Sharding(%336) {backend_config = "", mhlo.sharding = "{devices=[2,1,1,4]<=[8] last_tile_dim_replicate}"} : (tensor<4x8x32xf32>) -> tensor<4x8x32xf32>
    %338 = stablehlo.transpose %334, dims = [1, 0] : (tensor<32x32xf32>) -> tensor<32x32xf32>
    %339 = stablehlo.dot_general %338, %335, contracting_dims = [1] x [0], precision = [HIGHEST, HIGHEST] : (tensor<32x32xf32>, tensor<32x32xf32>) -> tensor<32x32xf32>
    %340 = stablehlo.reshape %333 : (tensor<4x8x32xf32>) -> tensor<4x8x4x8xf32>
    %341 = stablehlo.reshape %arg3 : (tensor<32x32xf32>) -> tensor<4x8x32xf32>
    %342 = stablehlo.dot_general %340, %341, batching_dims = [2] x [0], contracting_dims = [3] x [1], precision = [HIGHEST, HIGHEST] : (tensor<4x8x4x8xf32>, tensor<4x8x32xf32>) -> tensor<4x4x8x32xf32>
    %343 = stablehlo.custom_call @Sharding(%342) {backend_config = "unspecified_dims=[1,2,3]", mhlo.sharding = "{devices=[4,1,1,1,2]<=[2,4]T(1,0) last_tile_dim_replicate}"} : (tensor<4x4x8x32xf32>) -> tensor<4x4x8x32xf32>
    %344 = stablehlo.add %327, %343 : tensor<4x4x8x32xf32>
    %cst_46 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %345 = stablehlo.broadcast_in_dim %cst_46, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %346 = stablehlo.dot_general %345, %344, contracting_dims = [0] x [0], precision = [HIGHEST, HIGHEST] : (tensor<4xf32>, tensor<4x4x8x32xf32>) -> tensor<4x8x32xf32>
    %347 = stablehlo.custom_call @Sharding(%346) {backend_config = "", mhlo.sharding = "{devices=[2,1,1,4]<=[8] last_tile_dim_replicate}"} : (tensor<4x8x32xf32>) -> tensor<4x8x32xf32>
    %348 = stablehlo.custom_call @Sharding(%339) {backend_config = "", mhlo.sharding = "{devices=[4,1,2]<=[2,4]T(1,0) last_tile_dim_replicate}"} : (tensor<32x32xf32>) -> tensor<32x32xf32>
    %349 = stablehlo.broadcast_in_dim %arg2, dims = [2] : (tensor<32xf32>) -> tensor<1x1x32xf32>
    %350 = stablehlo.broadcast_in_dim %349, dims = [0, 1, 2] : (tensor<1x1x32xf32>) -> tensor<4x8x32xf32>
    %351 = stablehlo.multiply %347, %350 : tensor<4x8x32xf32>
    %352 = stablehlo.multiply %347, %37 : tensor<4x8x32xf32>
    %cst_47 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %353 = stablehlo.reduce(%352 init: %cst_47) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x8x32xf32>, tensor<f32>) -> tensor<32xf32>
    %354 = stablehlo.broadcast_in_dim %353, dims = [2] : (tensor<32xf32>) -> tensor<1x1x32xf32>
    %355 = stablehlo.multiply %351, %arg1 : tensor<4x8x32xf32>
    %356 = stablehlo.broadcast_in_dim %35, dims = [0, 1, 2] : (tensor<4x8x1xf32>) -> tensor<4x8x32xf32>
    %357 = stablehlo.multiply %351, %356 : tensor<4x8x32xf32>
    %cst_48 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %358 = stablehlo.reduce(%355 init: %cst_48) applies stablehlo.add across dimensions = [2] : (tensor<4x8x32xf32>, tensor<f32>) -> tensor<4x8xf32>
    %359 = stablehlo.broadcast_in_dim %358, dims = [0, 1] : (tensor<4x8xf32>) -> tensor<4x8x1xf32>
    %360 = stablehlo.add %234, %357 : tensor<4x8x32xf32>
    %361 = stablehlo.multiply %35, %35 : tensor<4x8x1xf32>
    %362 = stablehlo.multiply %361, %35 : tensor<4x8x1xf32>
    %363 = stablehlo.slice %arg11 [7:8] : (tensor<9xf64>) -> tensor<1xf64>
    %364 = stablehlo.reshape %363 : (tensor<1xf64>) -> tensor<f64>
    %365 = stablehlo.convert %364 : (tensor<f64>) -> tensor<f32>
    %366 = stablehlo.broadcast_in_dim %365, dims = [] : (tensor<f32>) -> tensor<4x8x1xf32>
    %367 = stablehlo.multiply %359, %366 : tensor<4x8x1xf32>
    %368 = stablehlo.multiply %367, %362 : tensor<4x8x1xf32>
    %369 = stablehlo.broadcast_in_dim %368, dims = [0, 1, 2] : (tensor<4x8x1xf32>) -> tensor<4x8x32xf32>
    %370 = stablehlo.slice %arg12 [4:5] : (tensor<5xi64>) -> tensor<1xi64>
    %371 = stablehlo.reshape %370 : (tensor<1xi64>) -> tensor<i64>
    %372 = stablehlo.convert %371 : (tensor<i64>) -> tensor<f32>
    %373 = stablehlo.broadcast_in_dim %372, dims = [] : (tensor<f32>) -> tensor<4x8x32xf32>
    %374 = stablehlo.divide %369, %373 : tensor<4x8x32xf32>
    %375 = stablehlo.slice %arg11 [8:9] : (tensor<9xf64>) -> tensor<1xf64>
    %376 = stablehlo.reshape %375 : (tensor<1xf64>) -> tensor<f64>
    %377 = stablehlo.convert %376 : (tensor<f64>) -> tensor<f32>
    %378 = stablehlo.broadcast_in_dim %377, dims = [] : (tensor<f32>) -> tensor<4x8x32xf32>
    %379 = stablehlo.multiply %arg1, %378 : tensor<4x8x32xf32>
    %380 = stablehlo.multiply %374, %379 : tensor<4x8x32xf32>
    %381 = stablehlo.add %360, %380 : tensor<4x8x32xf32>
    return %160, %169, %201, %207, %240, %310, %331, %348, %354, %381 : tensor<32x64xf32>, tensor<64x32xf32>, tensor<64x32xf32>, tensor<1x1x32xf32>, tensor<32x32xf32>, tensor<32x32xf32>, tensor<32x32xf32>, tensor<32x32xf32>, tensor<1x1x32xf32>, tensor<4x8x32xf32>
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

// torch 2.13.0, jax 0.10.2, transformers 5.23.0
module @jit_spmd attributes {mhlo.num_partitions = 8 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<8x9xf32> {mhlo.sharding = "{devices=[8,1]<=[8]}"},
    %arg1: tensor<16x10xf32> {mhlo.sharding = "{devices=[4,2]<=[2,4]T(1,0)}", tf.aliasing_output = 1 : i32},
    %arg2: tensor<16xf32> {mhlo.sharding = "{devices=[8]<=[8]}", tf.aliasing_output = 2 : i32},
    %arg3: tensor<3x16xf32> {mhlo.sharding = "{devices=[1,4,2]<=[2,4]T(1,0) last_tile_dim_replicate}", tf.aliasing_output = 3 : i32},
    %arg4: tensor<3xf32> {mhlo.sharding = "{replicated}", tf.aliasing_output = 4 : i32},
    %arg5: tensor<16x10xf32> {mhlo.sharding = "{devices=[4,2]<=[2,4]T(1,0)}", tf.aliasing_output = 5 : i32},
    %arg6: tensor<16xf32> {mhlo.sharding = "{devices=[8]<=[8]}", tf.aliasing_output = 6 : i32},
    %arg7: tensor<3x16xf32> {mhlo.sharding = "{devices=[1,4,2]<=[2,4]T(1,0) last_tile_dim_replicate}", tf.aliasing_output = 7 : i32},
    %arg8: tensor<3xf32> {mhlo.sharding = "{replicated}", tf.aliasing_output = 8 : i32},
    %arg9: tensor<3xf64>,
    %arg10: tensor<3xi64>) -> (
    tensor<f32> {jax.result_info = "result[0]"},
    tensor<16x10xf32> {jax.result_info = "result[1]", mhlo.sharding = "{devices=[4,2]<=[2,4]T(1,0)}"},
    tensor<16xf32> {jax.result_info = "result[2]", mhlo.sharding = "{devices=[8]<=[8]}"},
    tensor<3x16xf32> {jax.result_info = "result[3]", mhlo.sharding = "{devices=[1,4,2]<=[2,4]T(1,0) last_tile_dim_replicate}"},
    tensor<3xf32> {jax.result_info = "result[4]", mhlo.sharding = "{replicated}"},
    tensor<16x10xf32> {jax.result_info = "result[5]", mhlo.sharding = "{devices=[4,2]<=[2,4]T(1,0)}"},
    tensor<16xf32> {jax.result_info = "result[6]", mhlo.sharding = "{devices=[8]<=[8]}"},
    tensor<3x16xf32> {jax.result_info = "result[7]", mhlo.sharding = "{devices=[1,4,2]<=[2,4]T(1,0) last_tile_dim_replicate}"},
    tensor<3xf32> {jax.result_info = "result[8]", mhlo.sharding = "{replicated}"}) {
    %0 = stablehlo.slice %arg0 [0:7, 0:9] : (tensor<8x9xf32>) -> tensor<7x9xf32>
    %1 = stablehlo.slice %arg1 [0:13, 0:9] : (tensor<16x10xf32>) -> tensor<13x9xf32>
    %2 = stablehlo.slice %arg2 [0:13] : (tensor<16xf32>) -> tensor<13xf32>
    %3 = stablehlo.slice %arg3 [0:3, 0:13] : (tensor<3x16xf32>) -> tensor<3x13xf32>
    %4 = stablehlo.custom_call @Sharding(%arg4) {backend_config = "", mhlo.sharding = "{replicated}"} : (tensor<3xf32>) -> tensor<3xf32>
    %5 = stablehlo.slice %arg5 [0:13, 0:9] : (tensor<16x10xf32>) -> tensor<13x9xf32>
    %6 = stablehlo.slice %arg6 [0:13] : (tensor<16xf32>) -> tensor<13xf32>
    %7 = stablehlo.slice %arg7 [0:3, 0:13] : (tensor<3x16xf32>) -> tensor<3x13xf32>
    %8 = stablehlo.custom_call @Sharding(%arg8) {backend_config = "", mhlo.sharding = "{replicated}"} : (tensor<3xf32>) -> tensor<3xf32>
    %9 = call @atleast_2d(%1) : (tensor<13x9xf32>) -> tensor<13x9xf32>
    %10 = stablehlo.transpose %9, dims = [1, 0] : (tensor<13x9xf32>) -> tensor<9x13xf32>
    %11 = stablehlo.dot_general %0, %10, contracting_dims = [1] x [0], precision = [HIGHEST, HIGHEST] : (tensor<7x9xf32>, tensor<9x13xf32>) -> tensor<7x13xf32>
    %12 = stablehlo.broadcast_in_dim %2, dims = [1] : (tensor<13xf32>) -> tensor<1x13xf32>
    %13 = stablehlo.broadcast_in_dim %12, dims = [0, 1] : (tensor<1x13xf32>) -> tensor<7x13xf32>
    %14 = stablehlo.add %13, %11 : tensor<7x13xf32>
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %15 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<7x13xf32>
    %16 = stablehlo.maximum %14, %15 : tensor<7x13xf32>
    %c = stablehlo.constant dense<0> : tensor<i64>
    %17 = call @_pad(%16, %c) : (tensor<7x13xf32>, tensor<i64>) -> tensor<8x16xf32>
    %18 = stablehlo.custom_call @Sharding(%17) {backend_config = "", mhlo.sharding = "{devices=[2,4]<=[8]}"} : (tensor<8x16xf32>) -> tensor<8x16xf32>
    %19 = stablehlo.slice %18 [0:7, 0:13] : (tensor<8x16xf32>) -> tensor<7x13xf32>
    %20 = stablehlo.slice %arg10 [0:1] : (tensor<3xi64>) -> tensor<1xi64>
    %21 = stablehlo.reshape %20 : (tensor<1xi64>) -> tensor<i64>
    %22 = stablehlo.slice %arg10 [1:2] : (tensor<3xi64>) -> tensor<1xi64>
    %23 = stablehlo.reshape %22 : (tensor<1xi64>) -> tensor<i64>
    %24 = stablehlo.convert %21 : (tensor<i64>) -> tensor<ui64>
    %25 = stablehlo.convert %23 : (tensor<i64>) -> tensor<ui64>
    %c_0 = stablehlo.constant dense<11400714819323198485> : tensor<ui64>
    %26 = stablehlo.add %24, %c_0 : tensor<ui64>
    %c_1 = stablehlo.constant dense<30> : tensor<ui64>
    %27 = stablehlo.shift_right_logical %26, %c_1 : tensor<ui64>
    %28 = stablehlo.xor %26, %27 : tensor<ui64>
    %c_2 = stablehlo.constant dense<13787848793156543929> : tensor<ui64>
    %29 = stablehlo.multiply %28, %c_2 : tensor<ui64>
    %c_3 = stablehlo.constant dense<27> : tensor<ui64>
    %30 = stablehlo.shift_right_logical %29, %c_3 : tensor<ui64>
    %31 = stablehlo.xor %29, %30 : tensor<ui64>
    %c_4 = stablehlo.constant dense<10723151780598845931> : tensor<ui64>
    %32 = stablehlo.multiply %31, %c_4 : tensor<ui64>
    %c_5 = stablehlo.constant dense<31> : tensor<ui64>
    %33 = stablehlo.shift_right_logical %32, %c_5 : tensor<ui64>
    %34 = stablehlo.xor %32, %33 : tensor<ui64>
    %c_6 = stablehlo.constant dense<1> : tensor<ui64>
    %35 = stablehlo.add %25, %c_6 : tensor<ui64>
    %c_7 = stablehlo.constant dense<11400714819323198485> : tensor<ui64>
    %36 = stablehlo.multiply %35, %c_7 : tensor<ui64>
    %37 = stablehlo.add %34, %36 : tensor<ui64>
    %c_8 = stablehlo.constant dense<30> : tensor<ui64>
    %38 = stablehlo.shift_right_logical %37, %c_8 : tensor<ui64>
    %39 = stablehlo.xor %37, %38 : tensor<ui64>
    %c_9 = stablehlo.constant dense<13787848793156543929> : tensor<ui64>
    %40 = stablehlo.multiply %39, %c_9 : tensor<ui64>
    %c_10 = stablehlo.constant dense<27> : tensor<ui64>
    %41 = stablehlo.shift_right_logical %40, %c_10 : tensor<ui64>
    %42 = stablehlo.xor %40, %41 : tensor<ui64>
    %c_11 = stablehlo.constant dense<10723151780598845931> : tensor<ui64>
    %43 = stablehlo.multiply %42, %c_11 : tensor<ui64>
    %c_12 = stablehlo.constant dense<31> : tensor<ui64>
    %44 = stablehlo.shift_right_logical %43, %c_12 : tensor<ui64>
    %45 = stablehlo.xor %43, %44 : tensor<ui64>
    %c_13 = stablehlo.constant dense<1> : tensor<ui64>
    %46 = stablehlo.or %45, %c_13 : tensor<ui64>
    %c_14 = stablehlo.constant dense<0> : tensor<ui64>
    %47 = stablehlo.broadcast_in_dim %c_14, dims = [] : (tensor<ui64>) -> tensor<7x13xui64>
    %48 = stablehlo.iota dim = 1 : tensor<7x13xui64>
    %c_15 = stablehlo.constant dense<1> : tensor<ui64>
    %49 = stablehlo.multiply %46, %c_15 : tensor<ui64>
    %50 = stablehlo.broadcast_in_dim %49, dims = [] : (tensor<ui64>) -> tensor<7x13xui64>
    %51 = stablehlo.multiply %48, %50 : tensor<7x13xui64>
    %52 = stablehlo.add %47, %51 : tensor<7x13xui64>
    %53 = stablehlo.iota dim = 0 : tensor<7x13xui64>
    %c_16 = stablehlo.constant dense<13> : tensor<ui64>
    %54 = stablehlo.multiply %46, %c_16 : tensor<ui64>
    %55 = stablehlo.broadcast_in_dim %54, dims = [] : (tensor<ui64>) -> tensor<7x13xui64>
    %56 = stablehlo.multiply %53, %55 : tensor<7x13xui64>
    %57 = stablehlo.add %52, %56 : tensor<7x13xui64>
    %58 = stablehlo.broadcast_in_dim %46, dims = [] : (tensor<ui64>) -> tensor<7x13xui64>
    %59 = stablehlo.add %57, %58 : tensor<7x13xui64>
    %60 = stablehlo.multiply %57, %57 : tensor<7x13xui64>
    %61 = stablehlo.add %60, %57 : tensor<7x13xui64>
    %c_17 = stablehlo.constant dense<32> : tensor<ui64>
    %62 = stablehlo.broadcast_in_dim %c_17, dims = [] : (tensor<ui64>) -> tensor<7x13xui64>
    %63 = stablehlo.shift_right_logical %61, %62 : tensor<7x13xui64>
    %c_18 = stablehlo.constant dense<32> : tensor<ui64>
    %64 = stablehlo.broadcast_in_dim %c_18, dims = [] : (tensor<ui64>) -> tensor<7x13xui64>
    %65 = stablehlo.shift_left %61, %64 : tensor<7x13xui64>
    %66 = stablehlo.or %63, %65 : tensor<7x13xui64>
    %67 = stablehlo.multiply %66, %66 : tensor<7x13xui64>
    %68 = stablehlo.add %67, %59 : tensor<7x13xui64>
    %c_19 = stablehlo.constant dense<32> : tensor<ui64>
    %69 = stablehlo.broadcast_in_dim %c_19, dims = [] : (tensor<ui64>) -> tensor<7x13xui64>
    %70 = stablehlo.shift_right_logical %68, %69 : tensor<7x13xui64>
    %c_20 = stablehlo.constant dense<32> : tensor<ui64>
    %71 = stablehlo.broadcast_in_dim %c_20, dims = [] : (tensor<ui64>) -> tensor<7x13xui64>
    %72 = stablehlo.shift_left %68, %71 : tensor<7x13xui64>
    %73 = stablehlo.or %70, %72 : tensor<7x13xui64>
    %74 = stablehlo.multiply %73, %73 : tensor<7x13xui64>
    %75 = stablehlo.add %74, %57 : tensor<7x13xui64>
    %c_21 = stablehlo.constant dense<32> : tensor<ui64>
    %76 = stablehlo.broadcast_in_dim %c_21, dims = [] : (tensor<ui64>) -> tensor<7x13xui64>
    %77 = stablehlo.shift_right_logical %75, %76 : tensor<7x13xui64>
    %c_22 = stablehlo.constant dense<32> : tensor<ui64>
    %78 = stablehlo.broadcast_in_dim %c_22, dims = [] : (tensor<ui64>) -> tensor<7x13xui64>
    %79 = stablehlo.shift_left %75, %78 : tensor<7x13xui64>
    %80 = stablehlo.or %77, %79 : tensor<7x13xui64>
    %81 = stablehlo.multiply %80, %80 : tensor<7x13xui64>
    %82 = stablehlo.add %81, %59 : tensor<7x13xui64>
    %c_23 = stablehlo.constant dense<32> : tensor<ui64>
    %83 = stablehlo.broadcast_in_dim %c_23, dims = [] : (tensor<ui64>) -> tensor<7x13xui64>
    %84 = stablehlo.shift_right_logical %82, %83 : tensor<7x13xui64>
    %c_24 = stablehlo.constant dense<32> : tensor<ui64>
    %85 = stablehlo.broadcast_in_dim %c_24, dims = [] : (tensor<ui64>) -> tensor<7x13xui64>
    %86 = stablehlo.shift_left %82, %85 : tensor<7x13xui64>
    %87 = stablehlo.or %84, %86 : tensor<7x13xui64>
    %88 = stablehlo.multiply %87, %87 : tensor<7x13xui64>
    %89 = stablehlo.add %88, %57 : tensor<7x13xui64>
    %c_25 = stablehlo.constant dense<32> : tensor<ui64>
    %90 = stablehlo.broadcast_in_dim %c_25, dims = [] : (tensor<ui64>) -> tensor<7x13xui64>
    %91 = stablehlo.shift_right_logical %89, %90 : tensor<7x13xui64>
    %92 = stablehlo.xor %82, %91 : tensor<7x13xui64>
    %c_26 = stablehlo.constant dense<40> : tensor<ui64>
    %93 = stablehlo.broadcast_in_dim %c_26, dims = [] : (tensor<ui64>) -> tensor<7x13xui64>
    %94 = stablehlo.shift_right_logical %92, %93 : tensor<7x13xui64>
    %95 = stablehlo.convert %94 : (tensor<7x13xui64>) -> tensor<7x13xui32>
    %96 = stablehlo.convert %95 : (tensor<7x13xui32>) -> tensor<7x13xf32>
    %cst_27 = stablehlo.constant dense<5.96046448E-8> : tensor<f32>
    %97 = stablehlo.broadcast_in_dim %cst_27, dims = [] : (tensor<f32>) -> tensor<7x13xf32>
    %98 = stablehlo.multiply %96, %97 : tensor<7x13xf32>
    %cst_28 = stablehlo.constant dense<7.500000e-01> : tensor<f32>
    %99 = stablehlo.broadcast_in_dim %cst_28, dims = [] : (tensor<f32>) -> tensor<7x13xf32>
    %100 = stablehlo.compare LT, %98, %99, FLOAT : (tensor<7x13xf32>, tensor<7x13xf32>) -> tensor<7x13xi1>
    %cst_29 = stablehlo.constant dense<1.33333337> : tensor<f32>
    %101 = stablehlo.broadcast_in_dim %cst_29, dims = [] : (tensor<f32>) -> tensor<7x13xf32>
    %102 = stablehlo.multiply %19, %101 : tensor<7x13xf32>
    %cst_30 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %103 = call @_where(%100, %102, %cst_30) : (tensor<7x13xi1>, tensor<7x13xf32>, tensor<f32>) -> tensor<7x13xf32>
    %104 = call @atleast_2d_0(%3) : (tensor<3x13xf32>) -> tensor<3x13xf32>
    %105 = stablehlo.transpose %104, dims = [1, 0] : (tensor<3x13xf32>) -> tensor<13x3xf32>
    %106 = stablehlo.dot_general %103, %105, contracting_dims = [1] x [0], precision = [HIGHEST, HIGHEST] : (tensor<7x13xf32>, tensor<13x3xf32>) -> tensor<7x3xf32>
    %107 = stablehlo.broadcast_in_dim %4, dims = [1] : (tensor<3xf32>) -> tensor<1x3xf32>
    %108 = stablehlo.broadcast_in_dim %107, dims = [0, 1] : (tensor<1x3xf32>) -> tensor<7x3xf32>
    %109 = stablehlo.add %108, %106 : tensor<7x3xf32>
    %110 = stablehlo.multiply %109, %109 : tensor<7x3xf32>
    %cst_31 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %111 = stablehlo.reduce(%110 init: %cst_31) applies stablehlo.add across dimensions = [0, 1] : (tensor<7x3xf32>, tensor<f32>) -> tensor<f32>
    %cst_32 = stablehlo.constant dense<2.100000e+01> : tensor<f32>
    %112 = stablehlo.divide %111, %cst_32 : tensor<f32>
    %cst_33 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %113 = stablehlo.broadcast_in_dim %cst_33, dims = [] : (tensor<f32>) -> tensor<7x3xf32>
    %114 = stablehlo.slice %arg10 [2:3] : (tensor<3xi64>) -> tensor<1xi64>
    %115 = stablehlo.reshape %114 : (tensor<1xi64>) -> tensor<i64>
    %116 = stablehlo.convert %115 : (tensor<i64>) -> tensor<f32>
    %117 = stablehlo.broadcast_in_dim %116, dims = [] : (tensor<f32>) -> tensor<7x3xf32>
    %118 = stablehlo.divide %113, %117 : tensor<7x3xf32>
    %119 = stablehlo.slice %arg9 [0:1] : (tensor<3xf64>) -> tensor<1xf64>
    %120 = stablehlo.reshape %119 : (tensor<1xf64>) -> tensor<f64>
    %121 = stablehlo.convert %120 : (tensor<f64>) -> tensor<f32>
    %122 = stablehlo.broadcast_in_dim %121, dims = [] : (tensor<f32>) -> tensor<7x3xf32>
    %123 = stablehlo.multiply %109, %122 : tensor<7x3xf32>
    %124 = stablehlo.multiply %118, %123 : tensor<7x3xf32>
    %125 = stablehlo.dot_general %124, %3, contracting_dims = [1] x [0], precision = [HIGHEST, HIGHEST] : (tensor<7x3xf32>, tensor<3x13xf32>) -> tensor<7x13xf32>
    %126 = stablehlo.transpose %124, dims = [1, 0] : (tensor<7x3xf32>) -> tensor<3x7xf32>
    %127 = stablehlo.dot_general %126, %103, contracting_dims = [1] x [0], precision = [HIGHEST, HIGHEST] : (tensor<3x7xf32>, tensor<7x13xf32>) -> tensor<3x13xf32>
    %cst_34 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %128 = stablehlo.reduce(%124 init: %cst_34) applies stablehlo.add across dimensions = [0] : (tensor<7x3xf32>, tensor<f32>) -> tensor<3xf32>
    %c_35 = stablehlo.constant dense<0> : tensor<i64>
    %129 = call @_pad_1(%127, %c_35) : (tensor<3x13xf32>, tensor<i64>) -> tensor<3x16xf32>
    %130 = stablehlo.custom_call @Sharding(%129) {backend_config = "", mhlo.sharding = "{devices=[1,4,2]<=[2,4]T(1,0) last_tile_dim_replicate}"} : (tensor<3x16xf32>) -> tensor<3x16xf32>
    %131 = stablehlo.slice %130 [0:3, 0:13] : (tensor<3x16xf32>) -> tensor<3x13xf32>
    %cst_36 = stablehlo.constant dense<1.33333337> : tensor<f32>
    %132 = stablehlo.broadcast_in_dim %cst_36, dims = [] : (tensor<f32>) -> tensor<7x13xf32>
    %133 = stablehlo.multiply %125, %132 : tensor<7x13xf32>
    %cst_37 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %134 = call @_where(%100, %133, %cst_37) : (tensor<7x13xi1>, tensor<7x13xf32>, tensor<f32>) -> tensor<7x13xf32>
    %c_38 = stablehlo.constant dense<0> : tensor<i64>
    %135 = call @_pad(%134, %c_38) : (tensor<7x13xf32>, tensor<i64>) -> tensor<8x16xf32>
    %136 = stablehlo.custom_call @Sharding(%135) {backend_config = "", mhlo.sharding = "{devices=[2,4]<=[8]}"} : (tensor<8x16xf32>) -> tensor<8x16xf32>
    %137 = stablehlo.slice %136 [0:7, 0:13] : (tensor<8x16xf32>) -> tensor<7x13xf32>
    %cst_39 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %138 = stablehlo.broadcast_in_dim %cst_39, dims = [] : (tensor<f32>) -> tensor<7x13xf32>
    %139 = stablehlo.compare LE, %19, %138, FLOAT : (tensor<7x13xf32>, tensor<7x13xf32>) -> tensor<7x13xi1>
    %cst_40 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %140 = call @_where_2(%139, %cst_40, %137) : (tensor<7x13xi1>, tensor<f32>, tensor<7x13xf32>) -> tensor<7x13xf32>
    %141 = stablehlo.transpose %140, dims = [1, 0] : (tensor<7x13xf32>) -> tensor<13x7xf32>
    %142 = stablehlo.dot_general %141, %0, contracting_dims = [1] x [0], precision = [HIGHEST, HIGHEST] : (tensor<13x7xf32>, tensor<7x9xf32>) -> tensor<13x9xf32>
    %cst_41 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %143 = stablehlo.reduce(%140 init: %cst_41) applies stablehlo.add across dimensions = [0] : (tensor<7x13xf32>, tensor<f32>) -> tensor<13xf32>
    %c_42 = stablehlo.constant dense<0> : tensor<i64>
    %144 = call @_pad_3(%142, %c_42) : (tensor<13x9xf32>, tensor<i64>) -> tensor<16x10xf32>
    %145 = stablehlo.custom_call @Sharding(%144) {backend_config = "", mhlo.sharding = "{devices=[4,2]<=[2,4]T(1,0)}"} : (tensor<16x10xf32>) -> tensor<16x10xf32>
    %146 = stablehlo.slice %145 [0:13, 0:9] : (tensor<16x10xf32>) -> tensor<13x9xf32>
    %c_43 = stablehlo.constant dense<0> : tensor<i64>
    %147 = call @_pad_4(%143, %c_43) : (tensor<13xf32>, tensor<i64>) -> tensor<16xf32>
    %148 = stablehlo.custom_call @Sharding(%147) {backend_config = "", mhlo.sharding = "{devices=[8]<=[8]}"} : (tensor<16xf32>) -> tensor<16xf32>
    %149 = stablehlo.slice %148 [0:13] : (tensor<16xf32>) -> tensor<13xf32>
    %150 = stablehlo.slice %arg9 [1:2] : (tensor<3xf64>) -> tensor<1xf64>
    %151 = stablehlo.reshape %150 : (tensor<1xf64>) -> tensor<f64>
    %152 = stablehlo.convert %151 : (tensor<f64>) -> tensor<f32>
    %153 = stablehlo.broadcast_in_dim %152, dims = [] : (tensor<f32>) -> tensor<13x9xf32>
    %154 = stablehlo.multiply %5, %153 : tensor<13x9xf32>
    %155 = stablehlo.convert %151 : (tensor<f64>) -> tensor<f32>
    %156 = stablehlo.broadcast_in_dim %155, dims = [] : (tensor<f32>) -> tensor<13xf32>
    %157 = stablehlo.multiply %6, %156 : tensor<13xf32>
    %158 = stablehlo.convert %151 : (tensor<f64>) -> tensor<f32>
    %159 = stablehlo.broadcast_in_dim %158, dims = [] : (tensor<f32>) -> tensor<3x13xf32>
    %160 = stablehlo.multiply %7, %159 : tensor<3x13xf32>
    %161 = stablehlo.convert %151 : (tensor<f64>) -> tensor<f32>
    %162 = stablehlo.broadcast_in_dim %161, dims = [] : (tensor<f32>) -> tensor<3xf32>
    %163 = stablehlo.multiply %8, %162 : tensor<3xf32>
    %164 = stablehlo.add %154, %146 : tensor<13x9xf32>
    %165 = stablehlo.add %157, %149 : tensor<13xf32>
    %166 = stablehlo.add %160, %131 : tensor<3x13xf32>
    %167 = stablehlo.add %163, %128 : tensor<3xf32>
    %168 = stablehlo.slice %arg9 [2:3] : (tensor<3xf64>) -> tensor<1xf64>
    %169 = stablehlo.reshape %168 : (tensor<1xf64>) -> tensor<f64>
    %170 = stablehlo.convert %169 : (tensor<f64>) -> tensor<f32>
    %171 = stablehlo.broadcast_in_dim %170, dims = [] : (tensor<f32>) -> tensor<13x9xf32>
    %172 = stablehlo.multiply %171, %164 : tensor<13x9xf32>
    %173 = stablehlo.add %1, %172 : tensor<13x9xf32>
    %174 = stablehlo.convert %169 : (tensor<f64>) -> tensor<f32>
    %175 = stablehlo.broadcast_in_dim %174, dims = [] : (tensor<f32>) -> tensor<13xf32>
    %176 = stablehlo.multiply %175, %165 : tensor<13xf32>
    %177 = stablehlo.add %2, %176 : tensor<13xf32>
    %178 = stablehlo.convert %169 : (tensor<f64>) -> tensor<f32>
    %179 = stablehlo.broadcast_in_dim %178, dims = [] : (tensor<f32>) -> tensor<3x13xf32>
    %180 = stablehlo.multiply %179, %166 : tensor<3x13xf32>
    %181 = stablehlo.add %3, %180 : tensor<3x13xf32>
    %182 = stablehlo.convert %169 : (tensor<f64>) -> tensor<f32>
    %183 = stablehlo.broadcast_in_dim %182, dims = [] : (tensor<f32>) -> tensor<3xf32>
    %184 = stablehlo.multiply %183, %167 : tensor<3xf32>
    %185 = stablehlo.add %4, %184 : tensor<3xf32>
    %c_44 = stablehlo.constant dense<0> : tensor<i64>
    %186 = call @_pad_5(%164, %c_44) : (tensor<13x9xf32>, tensor<i64>) -> tensor<16x10xf32>
    %c_45 = stablehlo.constant dense<0> : tensor<i64>
    %187 = call @_pad_6(%165, %c_45) : (tensor<13xf32>, tensor<i64>) -> tensor<16xf32>
    %c_46 = stablehlo.constant dense<0> : tensor<i64>
    %188 = call @_pad_7(%166, %c_46) : (tensor<3x13xf32>, tensor<i64>) -> tensor<3x16xf32>
    %c_47 = stablehlo.constant dense<0> : tensor<i64>
    %189 = call @_pad_5(%173, %c_47) : (tensor<13x9xf32>, tensor<i64>) -> tensor<16x10xf32>
    %c_48 = stablehlo.constant dense<0> : tensor<i64>
    %190 = call @_pad_6(%177, %c_48) : (tensor<13xf32>, tensor<i64>) -> tensor<16xf32>
    %c_49 = stablehlo.constant dense<0> : tensor<i64>
    %191 = call @_pad_7(%181, %c_49) : (tensor<3x13xf32>, tensor<i64>) -> tensor<3x16xf32>
    return %112, %186, %187, %188, %167, %189, %190, %191, %185 : tensor<f32>, tensor<16x10xf32>, tensor<16xf32>, tensor<3x16xf32>, tensor<3xf32>, tensor<16x10xf32>, tensor<16xf32>, tensor<3x16xf32>, tensor<3xf32>
  }
  func.func private @atleast_2d(%arg0: tensor<13x9xf32>) -> tensor<13x9xf32> {
    return %arg0 : tensor<13x9xf32>
  }
  func.func private @_pad(%arg0: tensor<7x13xf32>, %arg1: tensor<i64>) -> tensor<8x16xf32> {
    %0 = stablehlo.convert %arg1 : (tensor<i64>) -> tensor<f32>
    %1 = stablehlo.pad %arg0, %0, low = [0, 0], high = [1, 3], interior = [0, 0] : (tensor<7x13xf32>, tensor<f32>) -> tensor<8x16xf32>
    return %1 : tensor<8x16xf32>
  }
  func.func private @_where(%arg0: tensor<7x13xi1>, %arg1: tensor<7x13xf32>, %arg2: tensor<f32>) -> tensor<7x13xf32> {
    %0 = stablehlo.broadcast_in_dim %arg2, dims = [] : (tensor<f32>) -> tensor<7x13xf32>
    %1 = stablehlo.select %arg0, %arg1, %0 : tensor<7x13xi1>, tensor<7x13xf32>
    return %1 : tensor<7x13xf32>
  }
  func.func private @atleast_2d_0(%arg0: tensor<3x13xf32>) -> tensor<3x13xf32> {
    return %arg0 : tensor<3x13xf32>
  }
  func.func private @_pad_1(%arg0: tensor<3x13xf32>, %arg1: tensor<i64>) -> tensor<3x16xf32> {
    %0 = stablehlo.convert %arg1 : (tensor<i64>) -> tensor<f32>
    %1 = stablehlo.pad %arg0, %0, low = [0, 0], high = [0, 3], interior = [0, 0] : (tensor<3x13xf32>, tensor<f32>) -> tensor<3x16xf32>
    return %1 : tensor<3x16xf32>
  }
  func.func private @_where_2(%arg0: tensor<7x13xi1>, %arg1: tensor<f32>, %arg2: tensor<7x13xf32>) -> tensor<7x13xf32> {
    %0 = stablehlo.broadcast_in_dim %arg1, dims = [] : (tensor<f32>) -> tensor<7x13xf32>
    %1 = stablehlo.select %arg0, %0, %arg2 : tensor<7x13xi1>, tensor<7x13xf32>
    return %1 : tensor<7x13xf32>
  }
  func.func private @_pad_3(%arg0: tensor<13x9xf32>, %arg1: tensor<i64>) -> tensor<16x10xf32> {
    %0 = stablehlo.convert %arg1 : (tensor<i64>) -> tensor<f32>
    %1 = stablehlo.pad %arg0, %0, low = [0, 0], high = [3, 1], interior = [0, 0] : (tensor<13x9xf32>, tensor<f32>) -> tensor<16x10xf32>
    return %1 : tensor<16x10xf32>
  }
  func.func private @_pad_4(%arg0: tensor<13xf32>, %arg1: tensor<i64>) -> tensor<16xf32> {
    %0 = stablehlo.convert %arg1 : (tensor<i64>) -> tensor<f32>
    %1 = stablehlo.pad %arg0, %0, low = [0], high = [3], interior = [0] : (tensor<13xf32>, tensor<f32>) -> tensor<16xf32>
    return %1 : tensor<16xf32>
  }
  func.func private @_pad_5(%arg0: tensor<13x9xf32>, %arg1: tensor<i64>) -> tensor<16x10xf32> {
    %0 = stablehlo.convert %arg1 : (tensor<i64>) -> tensor<f32>
    %1 = stablehlo.pad %arg0, %0, low = [0, 0], high = [3, 1], interior = [0, 0] : (tensor<13x9xf32>, tensor<f32>) -> tensor<16x10xf32>
    return %1 : tensor<16x10xf32>
  }
  func.func private @_pad_6(%arg0: tensor<13xf32>, %arg1: tensor<i64>) -> tensor<16xf32> {
    %0 = stablehlo.convert %arg1 : (tensor<i64>) -> tensor<f32>
    %1 = stablehlo.pad %arg0, %0, low = [0], high = [3], interior = [0] : (tensor<13xf32>, tensor<f32>) -> tensor<16xf32>
    return %1 : tensor<16xf32>
  }
  func.func private @_pad_7(%arg0: tensor<3x13xf32>, %arg1: tensor<i64>) -> tensor<3x16xf32> {
    %0 = stablehlo.convert %arg1 : (tensor<i64>) -> tensor<f32>
    %1 = stablehlo.pad %arg0, %0, low = [0, 0], high = [0, 3], interior = [0, 0] : (tensor<3x13xf32>, tensor<f32>) -> tensor<3x16xf32>
    return %1 : tensor<3x16xf32>
  }
}

// torch 2.13.0, jax 0.10.2, transformers 5.23.0
module @jit_spmd attributes {mhlo.num_partitions = 8 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["data"=2, "model"=4]> {stablehlo.mesh = {axes = [{name = "data", size = 2 : i64}, {name = "model", size = 4 : i64}]}}
  func.func public @main(%arg0: tensor<8x9xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data", "model"}, {}]>},
    %arg1: tensor<16x10xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"model"}, {"data"}]>, tf.aliasing_output = 1 : i32},
    %arg2: tensor<16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data", "model"}]>, tf.aliasing_output = 2 : i32},
    %arg3: tensor<3x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"model"}]>, tf.aliasing_output = 3 : i32},
    %arg4: tensor<3xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>, tf.aliasing_output = 4 : i32},
    %arg5: tensor<16x10xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"model"}, {"data"}]>, tf.aliasing_output = 5 : i32},
    %arg6: tensor<16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data", "model"}]>, tf.aliasing_output = 6 : i32},
    %arg7: tensor<3x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"model"}]>, tf.aliasing_output = 7 : i32},
    %arg8: tensor<3xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>, tf.aliasing_output = 8 : i32},
    %arg9: tensor<3xf64>,
    %arg10: tensor<3xi64>) -> (
    tensor<f32> {jax.result_info = "result[0]"},
    tensor<16x10xf32> {jax.result_info = "result[1]", sdy.sharding = #sdy.sharding<@mesh, [{"model"}, {"data"}]>},
    tensor<16xf32> {jax.result_info = "result[2]", sdy.sharding = #sdy.sharding<@mesh, [{"data", "model"}]>},
    tensor<3x16xf32> {jax.result_info = "result[3]", sdy.sharding = #sdy.sharding<@mesh, [{}, {"model"}]>},
    tensor<3xf32> {jax.result_info = "result[4]", sdy.sharding = #sdy.sharding<@mesh, [{}]>},
    tensor<16x10xf32> {jax.result_info = "result[5]", sdy.sharding = #sdy.sharding<@mesh, [{"model"}, {"data"}]>},
    tensor<16xf32> {jax.result_info = "result[6]", sdy.sharding = #sdy.sharding<@mesh, [{"data", "model"}]>},
    tensor<3x16xf32> {jax.result_info = "result[7]", sdy.sharding = #sdy.sharding<@mesh, [{}, {"model"}]>},
    tensor<3xf32> {jax.result_info = "result[8]", sdy.sharding = #sdy.sharding<@mesh, [{}]>}) {
    %0 = stablehlo.slice %arg0 [0:7, 0:9] : (tensor<8x9xf32>) -> tensor<7x9xf32>
    %1 = stablehlo.slice %arg1 [0:13, 0:9] : (tensor<16x10xf32>) -> tensor<13x9xf32>
    %2 = stablehlo.slice %arg2 [0:13] : (tensor<16xf32>) -> tensor<13xf32>
    %3 = stablehlo.slice %arg3 [0:3, 0:13] : (tensor<3x16xf32>) -> tensor<3x13xf32>
    %4 = stablehlo.slice %arg5 [0:13, 0:9] : (tensor<16x10xf32>) -> tensor<13x9xf32>
    %5 = stablehlo.slice %arg6 [0:13] : (tensor<16xf32>) -> tensor<13xf32>
    %6 = stablehlo.slice %arg7 [0:3, 0:13] : (tensor<3x16xf32>) -> tensor<3x13xf32>
    %7 = call @atleast_2d(%1) : (tensor<13x9xf32>) -> tensor<13x9xf32>
    %8 = stablehlo.transpose %7, dims = [1, 0] : (tensor<13x9xf32>) -> tensor<9x13xf32>
    %9 = stablehlo.dot_general %0, %8, contracting_dims = [1] x [0], precision = [HIGHEST, HIGHEST] : (tensor<7x9xf32>, tensor<9x13xf32>) -> tensor<7x13xf32>
    %10 = stablehlo.broadcast_in_dim %2, dims = [1] : (tensor<13xf32>) -> tensor<1x13xf32>
    %11 = stablehlo.broadcast_in_dim %10, dims = [0, 1] : (tensor<1x13xf32>) -> tensor<7x13xf32>
    %12 = stablehlo.add %11, %9 : tensor<7x13xf32>
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %13 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<7x13xf32>
    %14 = stablehlo.maximum %12, %13 : tensor<7x13xf32>
    %c = stablehlo.constant dense<0> : tensor<i64>
    %15 = call @_pad(%14, %c) : (tensor<7x13xf32>, tensor<i64>) -> tensor<8x16xf32>
    %16 = sdy.sharding_constraint %15 <@mesh, [{"data"}, {"model"}]> : tensor<8x16xf32>
    %17 = stablehlo.slice %16 [0:7, 0:13] : (tensor<8x16xf32>) -> tensor<7x13xf32>
    %18 = stablehlo.slice %arg10 [0:1] : (tensor<3xi64>) -> tensor<1xi64>
    %19 = stablehlo.reshape %18 : (tensor<1xi64>) -> tensor<i64>
    %20 = stablehlo.slice %arg10 [1:2] : (tensor<3xi64>) -> tensor<1xi64>
    %21 = stablehlo.reshape %20 : (tensor<1xi64>) -> tensor<i64>
    %22 = stablehlo.convert %19 : (tensor<i64>) -> tensor<ui64>
    %23 = stablehlo.convert %21 : (tensor<i64>) -> tensor<ui64>
    %c_0 = stablehlo.constant dense<11400714819323198485> : tensor<ui64>
    %24 = stablehlo.add %22, %c_0 : tensor<ui64>
    %c_1 = stablehlo.constant dense<30> : tensor<ui64>
    %25 = stablehlo.shift_right_logical %24, %c_1 : tensor<ui64>
    %26 = stablehlo.xor %24, %25 : tensor<ui64>
    %c_2 = stablehlo.constant dense<13787848793156543929> : tensor<ui64>
    %27 = stablehlo.multiply %26, %c_2 : tensor<ui64>
    %c_3 = stablehlo.constant dense<27> : tensor<ui64>
    %28 = stablehlo.shift_right_logical %27, %c_3 : tensor<ui64>
    %29 = stablehlo.xor %27, %28 : tensor<ui64>
    %c_4 = stablehlo.constant dense<10723151780598845931> : tensor<ui64>
    %30 = stablehlo.multiply %29, %c_4 : tensor<ui64>
    %c_5 = stablehlo.constant dense<31> : tensor<ui64>
    %31 = stablehlo.shift_right_logical %30, %c_5 : tensor<ui64>
    %32 = stablehlo.xor %30, %31 : tensor<ui64>
    %c_6 = stablehlo.constant dense<1> : tensor<ui64>
    %33 = stablehlo.add %23, %c_6 : tensor<ui64>
    %c_7 = stablehlo.constant dense<11400714819323198485> : tensor<ui64>
    %34 = stablehlo.multiply %33, %c_7 : tensor<ui64>
    %35 = stablehlo.add %32, %34 : tensor<ui64>
    %c_8 = stablehlo.constant dense<30> : tensor<ui64>
    %36 = stablehlo.shift_right_logical %35, %c_8 : tensor<ui64>
    %37 = stablehlo.xor %35, %36 : tensor<ui64>
    %c_9 = stablehlo.constant dense<13787848793156543929> : tensor<ui64>
    %38 = stablehlo.multiply %37, %c_9 : tensor<ui64>
    %c_10 = stablehlo.constant dense<27> : tensor<ui64>
    %39 = stablehlo.shift_right_logical %38, %c_10 : tensor<ui64>
    %40 = stablehlo.xor %38, %39 : tensor<ui64>
    %c_11 = stablehlo.constant dense<10723151780598845931> : tensor<ui64>
    %41 = stablehlo.multiply %40, %c_11 : tensor<ui64>
    %c_12 = stablehlo.constant dense<31> : tensor<ui64>
    %42 = stablehlo.shift_right_logical %41, %c_12 : tensor<ui64>
    %43 = stablehlo.xor %41, %42 : tensor<ui64>
    %c_13 = stablehlo.constant dense<1> : tensor<ui64>
    %44 = stablehlo.or %43, %c_13 : tensor<ui64>
    %c_14 = stablehlo.constant dense<0> : tensor<ui64>
    %45 = stablehlo.broadcast_in_dim %c_14, dims = [] : (tensor<ui64>) -> tensor<7x13xui64>
    %46 = stablehlo.iota dim = 1 : tensor<7x13xui64>
    %c_15 = stablehlo.constant dense<1> : tensor<ui64>
    %47 = stablehlo.multiply %44, %c_15 : tensor<ui64>
    %48 = stablehlo.broadcast_in_dim %47, dims = [] : (tensor<ui64>) -> tensor<7x13xui64>
    %49 = stablehlo.multiply %46, %48 : tensor<7x13xui64>
    %50 = stablehlo.add %45, %49 : tensor<7x13xui64>
    %51 = stablehlo.iota dim = 0 : tensor<7x13xui64>
    %c_16 = stablehlo.constant dense<13> : tensor<ui64>
    %52 = stablehlo.multiply %44, %c_16 : tensor<ui64>
    %53 = stablehlo.broadcast_in_dim %52, dims = [] : (tensor<ui64>) -> tensor<7x13xui64>
    %54 = stablehlo.multiply %51, %53 : tensor<7x13xui64>
    %55 = stablehlo.add %50, %54 : tensor<7x13xui64>
    %56 = stablehlo.broadcast_in_dim %44, dims = [] : (tensor<ui64>) -> tensor<7x13xui64>
    %57 = stablehlo.add %55, %56 : tensor<7x13xui64>
    %58 = stablehlo.multiply %55, %55 : tensor<7x13xui64>
    %59 = stablehlo.add %58, %55 : tensor<7x13xui64>
    %c_17 = stablehlo.constant dense<32> : tensor<ui64>
    %60 = stablehlo.broadcast_in_dim %c_17, dims = [] : (tensor<ui64>) -> tensor<7x13xui64>
    %61 = stablehlo.shift_right_logical %59, %60 : tensor<7x13xui64>
    %c_18 = stablehlo.constant dense<32> : tensor<ui64>
    %62 = stablehlo.broadcast_in_dim %c_18, dims = [] : (tensor<ui64>) -> tensor<7x13xui64>
    %63 = stablehlo.shift_left %59, %62 : tensor<7x13xui64>
    %64 = stablehlo.or %61, %63 : tensor<7x13xui64>
    %65 = stablehlo.multiply %64, %64 : tensor<7x13xui64>
    %66 = stablehlo.add %65, %57 : tensor<7x13xui64>
    %c_19 = stablehlo.constant dense<32> : tensor<ui64>
    %67 = stablehlo.broadcast_in_dim %c_19, dims = [] : (tensor<ui64>) -> tensor<7x13xui64>
    %68 = stablehlo.shift_right_logical %66, %67 : tensor<7x13xui64>
    %c_20 = stablehlo.constant dense<32> : tensor<ui64>
    %69 = stablehlo.broadcast_in_dim %c_20, dims = [] : (tensor<ui64>) -> tensor<7x13xui64>
    %70 = stablehlo.shift_left %66, %69 : tensor<7x13xui64>
    %71 = stablehlo.or %68, %70 : tensor<7x13xui64>
    %72 = stablehlo.multiply %71, %71 : tensor<7x13xui64>
    %73 = stablehlo.add %72, %55 : tensor<7x13xui64>
    %c_21 = stablehlo.constant dense<32> : tensor<ui64>
    %74 = stablehlo.broadcast_in_dim %c_21, dims = [] : (tensor<ui64>) -> tensor<7x13xui64>
    %75 = stablehlo.shift_right_logical %73, %74 : tensor<7x13xui64>
    %c_22 = stablehlo.constant dense<32> : tensor<ui64>
    %76 = stablehlo.broadcast_in_dim %c_22, dims = [] : (tensor<ui64>) -> tensor<7x13xui64>
    %77 = stablehlo.shift_left %73, %76 : tensor<7x13xui64>
    %78 = stablehlo.or %75, %77 : tensor<7x13xui64>
    %79 = stablehlo.multiply %78, %78 : tensor<7x13xui64>
    %80 = stablehlo.add %79, %57 : tensor<7x13xui64>
    %c_23 = stablehlo.constant dense<32> : tensor<ui64>
    %81 = stablehlo.broadcast_in_dim %c_23, dims = [] : (tensor<ui64>) -> tensor<7x13xui64>
    %82 = stablehlo.shift_right_logical %80, %81 : tensor<7x13xui64>
    %c_24 = stablehlo.constant dense<32> : tensor<ui64>
    %83 = stablehlo.broadcast_in_dim %c_24, dims = [] : (tensor<ui64>) -> tensor<7x13xui64>
    %84 = stablehlo.shift_left %80, %83 : tensor<7x13xui64>
    %85 = stablehlo.or %82, %84 : tensor<7x13xui64>
    %86 = stablehlo.multiply %85, %85 : tensor<7x13xui64>
    %87 = stablehlo.add %86, %55 : tensor<7x13xui64>
    %c_25 = stablehlo.constant dense<32> : tensor<ui64>
    %88 = stablehlo.broadcast_in_dim %c_25, dims = [] : (tensor<ui64>) -> tensor<7x13xui64>
    %89 = stablehlo.shift_right_logical %87, %88 : tensor<7x13xui64>
    %90 = stablehlo.xor %80, %89 : tensor<7x13xui64>
    %c_26 = stablehlo.constant dense<40> : tensor<ui64>
    %91 = stablehlo.broadcast_in_dim %c_26, dims = [] : (tensor<ui64>) -> tensor<7x13xui64>
    %92 = stablehlo.shift_right_logical %90, %91 : tensor<7x13xui64>
    %93 = stablehlo.convert %92 : (tensor<7x13xui64>) -> tensor<7x13xui32>
    %94 = stablehlo.convert %93 : (tensor<7x13xui32>) -> tensor<7x13xf32>
    %cst_27 = stablehlo.constant dense<5.96046448E-8> : tensor<f32>
    %95 = stablehlo.broadcast_in_dim %cst_27, dims = [] : (tensor<f32>) -> tensor<7x13xf32>
    %96 = stablehlo.multiply %94, %95 : tensor<7x13xf32>
    %cst_28 = stablehlo.constant dense<7.500000e-01> : tensor<f32>
    %97 = stablehlo.broadcast_in_dim %cst_28, dims = [] : (tensor<f32>) -> tensor<7x13xf32>
    %98 = stablehlo.compare LT, %96, %97, FLOAT : (tensor<7x13xf32>, tensor<7x13xf32>) -> tensor<7x13xi1>
    %cst_29 = stablehlo.constant dense<1.33333337> : tensor<f32>
    %99 = stablehlo.broadcast_in_dim %cst_29, dims = [] : (tensor<f32>) -> tensor<7x13xf32>
    %100 = stablehlo.multiply %17, %99 : tensor<7x13xf32>
    %cst_30 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %101 = call @_where(%98, %100, %cst_30) : (tensor<7x13xi1>, tensor<7x13xf32>, tensor<f32>) -> tensor<7x13xf32>
    %102 = call @atleast_2d_0(%3) : (tensor<3x13xf32>) -> tensor<3x13xf32>
    %103 = stablehlo.transpose %102, dims = [1, 0] : (tensor<3x13xf32>) -> tensor<13x3xf32>
    %104 = stablehlo.dot_general %101, %103, contracting_dims = [1] x [0], precision = [HIGHEST, HIGHEST] : (tensor<7x13xf32>, tensor<13x3xf32>) -> tensor<7x3xf32>
    %105 = stablehlo.broadcast_in_dim %arg4, dims = [1] : (tensor<3xf32>) -> tensor<1x3xf32>
    %106 = stablehlo.broadcast_in_dim %105, dims = [0, 1] : (tensor<1x3xf32>) -> tensor<7x3xf32>
    %107 = stablehlo.add %106, %104 : tensor<7x3xf32>
    %108 = stablehlo.multiply %107, %107 : tensor<7x3xf32>
    %cst_31 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %109 = stablehlo.reduce(%108 init: %cst_31) applies stablehlo.add across dimensions = [0, 1] : (tensor<7x3xf32>, tensor<f32>) -> tensor<f32>
    %cst_32 = stablehlo.constant dense<2.100000e+01> : tensor<f32>
    %110 = stablehlo.divide %109, %cst_32 : tensor<f32>
    %cst_33 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %111 = stablehlo.broadcast_in_dim %cst_33, dims = [] : (tensor<f32>) -> tensor<7x3xf32>
    %112 = stablehlo.slice %arg10 [2:3] : (tensor<3xi64>) -> tensor<1xi64>
    %113 = stablehlo.reshape %112 : (tensor<1xi64>) -> tensor<i64>
    %114 = stablehlo.convert %113 : (tensor<i64>) -> tensor<f32>
    %115 = stablehlo.broadcast_in_dim %114, dims = [] : (tensor<f32>) -> tensor<7x3xf32>
    %116 = stablehlo.divide %111, %115 : tensor<7x3xf32>
    %117 = stablehlo.slice %arg9 [0:1] : (tensor<3xf64>) -> tensor<1xf64>
    %118 = stablehlo.reshape %117 : (tensor<1xf64>) -> tensor<f64>
    %119 = stablehlo.convert %118 : (tensor<f64>) -> tensor<f32>
    %120 = stablehlo.broadcast_in_dim %119, dims = [] : (tensor<f32>) -> tensor<7x3xf32>
    %121 = stablehlo.multiply %107, %120 : tensor<7x3xf32>
    %122 = stablehlo.multiply %116, %121 : tensor<7x3xf32>
    %123 = stablehlo.dot_general %122, %3, contracting_dims = [1] x [0], precision = [HIGHEST, HIGHEST] : (tensor<7x3xf32>, tensor<3x13xf32>) -> tensor<7x13xf32>
    %124 = stablehlo.transpose %122, dims = [1, 0] : (tensor<7x3xf32>) -> tensor<3x7xf32>
    %125 = stablehlo.dot_general %124, %101, contracting_dims = [1] x [0], precision = [HIGHEST, HIGHEST] : (tensor<3x7xf32>, tensor<7x13xf32>) -> tensor<3x13xf32>
    %cst_34 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %126 = stablehlo.reduce(%122 init: %cst_34) applies stablehlo.add across dimensions = [0] : (tensor<7x3xf32>, tensor<f32>) -> tensor<3xf32>
    %c_35 = stablehlo.constant dense<0> : tensor<i64>
    %127 = call @_pad_1(%125, %c_35) : (tensor<3x13xf32>, tensor<i64>) -> tensor<3x16xf32>
    %128 = sdy.sharding_constraint %127 <@mesh, [{}, {"model"}]> : tensor<3x16xf32>
    %129 = stablehlo.slice %128 [0:3, 0:13] : (tensor<3x16xf32>) -> tensor<3x13xf32>
    %cst_36 = stablehlo.constant dense<1.33333337> : tensor<f32>
    %130 = stablehlo.broadcast_in_dim %cst_36, dims = [] : (tensor<f32>) -> tensor<7x13xf32>
    %131 = stablehlo.multiply %123, %130 : tensor<7x13xf32>
    %cst_37 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %132 = call @_where(%98, %131, %cst_37) : (tensor<7x13xi1>, tensor<7x13xf32>, tensor<f32>) -> tensor<7x13xf32>
    %c_38 = stablehlo.constant dense<0> : tensor<i64>
    %133 = call @_pad(%132, %c_38) : (tensor<7x13xf32>, tensor<i64>) -> tensor<8x16xf32>
    %134 = sdy.sharding_constraint %133 <@mesh, [{"data"}, {"model"}]> : tensor<8x16xf32>
    %135 = stablehlo.slice %134 [0:7, 0:13] : (tensor<8x16xf32>) -> tensor<7x13xf32>
    %cst_39 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %136 = stablehlo.broadcast_in_dim %cst_39, dims = [] : (tensor<f32>) -> tensor<7x13xf32>
    %137 = stablehlo.compare LE, %17, %136, FLOAT : (tensor<7x13xf32>, tensor<7x13xf32>) -> tensor<7x13xi1>
    %cst_40 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %138 = call @_where_2(%137, %cst_40, %135) : (tensor<7x13xi1>, tensor<f32>, tensor<7x13xf32>) -> tensor<7x13xf32>
    %139 = stablehlo.transpose %138, dims = [1, 0] : (tensor<7x13xf32>) -> tensor<13x7xf32>
    %140 = stablehlo.dot_general %139, %0, contracting_dims = [1] x [0], precision = [HIGHEST, HIGHEST] : (tensor<13x7xf32>, tensor<7x9xf32>) -> tensor<13x9xf32>
    %cst_41 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %141 = stablehlo.reduce(%138 init: %cst_41) applies stablehlo.add across dimensions = [0] : (tensor<7x13xf32>, tensor<f32>) -> tensor<13xf32>
    %c_42 = stablehlo.constant dense<0> : tensor<i64>
    %142 = call @_pad_3(%140, %c_42) : (tensor<13x9xf32>, tensor<i64>) -> tensor<16x10xf32>
    %143 = sdy.sharding_constraint %142 <@mesh, [{"model"}, {"data"}]> : tensor<16x10xf32>
    %144 = stablehlo.slice %143 [0:13, 0:9] : (tensor<16x10xf32>) -> tensor<13x9xf32>
    %c_43 = stablehlo.constant dense<0> : tensor<i64>
    %145 = call @_pad_4(%141, %c_43) : (tensor<13xf32>, tensor<i64>) -> tensor<16xf32>
    %146 = sdy.sharding_constraint %145 <@mesh, [{"data", "model"}]> : tensor<16xf32>
    %147 = stablehlo.slice %146 [0:13] : (tensor<16xf32>) -> tensor<13xf32>
    %148 = stablehlo.slice %arg9 [1:2] : (tensor<3xf64>) -> tensor<1xf64>
    %149 = stablehlo.reshape %148 : (tensor<1xf64>) -> tensor<f64>
    %150 = stablehlo.convert %149 : (tensor<f64>) -> tensor<f32>
    %151 = stablehlo.broadcast_in_dim %150, dims = [] : (tensor<f32>) -> tensor<13x9xf32>
    %152 = stablehlo.multiply %4, %151 : tensor<13x9xf32>
    %153 = stablehlo.convert %149 : (tensor<f64>) -> tensor<f32>
    %154 = stablehlo.broadcast_in_dim %153, dims = [] : (tensor<f32>) -> tensor<13xf32>
    %155 = stablehlo.multiply %5, %154 : tensor<13xf32>
    %156 = stablehlo.convert %149 : (tensor<f64>) -> tensor<f32>
    %157 = stablehlo.broadcast_in_dim %156, dims = [] : (tensor<f32>) -> tensor<3x13xf32>
    %158 = stablehlo.multiply %6, %157 : tensor<3x13xf32>
    %159 = stablehlo.convert %149 : (tensor<f64>) -> tensor<f32>
    %160 = stablehlo.broadcast_in_dim %159, dims = [] : (tensor<f32>) -> tensor<3xf32>
    %161 = stablehlo.multiply %arg8, %160 : tensor<3xf32>
    %162 = stablehlo.add %152, %144 : tensor<13x9xf32>
    %163 = stablehlo.add %155, %147 : tensor<13xf32>
    %164 = stablehlo.add %158, %129 : tensor<3x13xf32>
    %165 = stablehlo.add %161, %126 : tensor<3xf32>
    %166 = stablehlo.slice %arg9 [2:3] : (tensor<3xf64>) -> tensor<1xf64>
    %167 = stablehlo.reshape %166 : (tensor<1xf64>) -> tensor<f64>
    %168 = stablehlo.convert %167 : (tensor<f64>) -> tensor<f32>
    %169 = stablehlo.broadcast_in_dim %168, dims = [] : (tensor<f32>) -> tensor<13x9xf32>
    %170 = stablehlo.multiply %169, %162 : tensor<13x9xf32>
    %171 = stablehlo.add %1, %170 : tensor<13x9xf32>
    %172 = stablehlo.convert %167 : (tensor<f64>) -> tensor<f32>
    %173 = stablehlo.broadcast_in_dim %172, dims = [] : (tensor<f32>) -> tensor<13xf32>
    %174 = stablehlo.multiply %173, %163 : tensor<13xf32>
    %175 = stablehlo.add %2, %174 : tensor<13xf32>
    %176 = stablehlo.convert %167 : (tensor<f64>) -> tensor<f32>
    %177 = stablehlo.broadcast_in_dim %176, dims = [] : (tensor<f32>) -> tensor<3x13xf32>
    %178 = stablehlo.multiply %177, %164 : tensor<3x13xf32>
    %179 = stablehlo.add %3, %178 : tensor<3x13xf32>
    %180 = stablehlo.convert %167 : (tensor<f64>) -> tensor<f32>
    %181 = stablehlo.broadcast_in_dim %180, dims = [] : (tensor<f32>) -> tensor<3xf32>
    %182 = stablehlo.multiply %181, %165 : tensor<3xf32>
    %183 = stablehlo.add %arg4, %182 : tensor<3xf32>
    %c_44 = stablehlo.constant dense<0> : tensor<i64>
    %184 = call @_pad_5(%162, %c_44) : (tensor<13x9xf32>, tensor<i64>) -> tensor<16x10xf32>
    %c_45 = stablehlo.constant dense<0> : tensor<i64>
    %185 = call @_pad_6(%163, %c_45) : (tensor<13xf32>, tensor<i64>) -> tensor<16xf32>
    %c_46 = stablehlo.constant dense<0> : tensor<i64>
    %186 = call @_pad_7(%164, %c_46) : (tensor<3x13xf32>, tensor<i64>) -> tensor<3x16xf32>
    %c_47 = stablehlo.constant dense<0> : tensor<i64>
    %187 = call @_pad_5(%171, %c_47) : (tensor<13x9xf32>, tensor<i64>) -> tensor<16x10xf32>
    %c_48 = stablehlo.constant dense<0> : tensor<i64>
    %188 = call @_pad_6(%175, %c_48) : (tensor<13xf32>, tensor<i64>) -> tensor<16xf32>
    %c_49 = stablehlo.constant dense<0> : tensor<i64>
    %189 = call @_pad_7(%179, %c_49) : (tensor<3x13xf32>, tensor<i64>) -> tensor<3x16xf32>
    return %110, %184, %185, %186, %165, %187, %188, %189, %183 : tensor<f32>, tensor<16x10xf32>, tensor<16xf32>, tensor<3x16xf32>, tensor<3xf32>, tensor<16x10xf32>, tensor<16xf32>, tensor<3x16xf32>, tensor<3xf32>
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

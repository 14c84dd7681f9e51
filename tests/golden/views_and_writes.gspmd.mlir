// torch 2.13.0, jax 0.10.2, transformers 5.23.0
module @jit_spmd attributes {mhlo.num_partitions = 8 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<8x16xf32> {mhlo.sharding = "{devices=[8,1]<=[8]}", tf.aliasing_output = 0 : i32},
    %arg1: tensor<3xi64> {mhlo.sharding = "{replicated}"},
    %arg2: tensor<2xf64>,
    %arg3: tensor<6xi64>) -> (
    tensor<8x16xf32> {jax.result_info = "result[0]", mhlo.sharding = "{devices=[8,1]<=[8]}"},
    tensor<128xf32> {jax.result_info = "result[1]"},
    tensor<16x8xf32> {jax.result_info = "result[2]"}) {
    %c = stablehlo.constant dense<[0, 3, 6, 9, 12, 15]> : tensor<6xi64>
    %c_0 = stablehlo.constant dense<false> : tensor<6xi1>
    %c_1 = stablehlo.constant dense<[0, 1, 2, 3, 4, 5, 6, 7]> : tensor<8xi64>
    %c_2 = stablehlo.constant dense<false> : tensor<8xi1>
    %c_3 = stablehlo.constant dense<[1, 2, 3, 4, 5, 6, 7, 8]> : tensor<8xi64>
    %c_4 = stablehlo.constant dense<false> : tensor<8xi1>
    %c_5 = stablehlo.constant dense<[[1, 3, 5], [18, 20, 22], [35, 37, 39], [52, 54, 56]]> : tensor<4x3xi64>
    %c_6 = stablehlo.constant dense<false> : tensor<4x3xi1>
    %c_7 = stablehlo.constant dense<[[2, 18, 34, 50], [3, 19, 35, 51], [4, 20, 36, 52]]> : tensor<3x4xi64>
    %c_8 = stablehlo.constant dense<false> : tensor<3x4xi1>
    %c_9 = stablehlo.constant dense<[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]> : tensor<12xi64>
    %c_10 = stablehlo.constant dense<false> : tensor<12xi1>
    %c_11 = stablehlo.constant dense<[1, 3, 5, 18, 20, 22, 35, 37, 39, 52, 54, 56]> : tensor<12xi64>
    %c_12 = stablehlo.constant dense<false> : tensor<12xi1>
    %c_13 = stablehlo.constant dense<[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31]> : tensor<32xi64>
    %c_14 = stablehlo.constant dense<false> : tensor<32xi1>
    %c_15 = stablehlo.constant dense<[0, 4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 44, 48, 52, 56, 60, 64, 68, 72, 76, 80, 84, 88, 92, 96, 100, 104, 108, 112, 116, 120, 124]> : tensor<32xi64>
    %c_16 = stablehlo.constant dense<false> : tensor<32xi1>
    %0 = stablehlo.custom_call @Sharding(%arg1) {backend_config = "", mhlo.sharding = "{replicated}"} : (tensor<3xi64>) -> tensor<3xi64>
    %1 = stablehlo.slice %arg0 [1:5, 0:16] : (tensor<8x16xf32>) -> tensor<4x16xf32>
    %2 = stablehlo.slice %1 [0:4, 0:6] : (tensor<4x16xf32>) -> tensor<4x6xf32>
    %3 = stablehlo.cosine %2 : tensor<4x6xf32>
    %4 = stablehlo.slice %arg0 [2:6, 0:16] : (tensor<8x16xf32>) -> tensor<4x16xf32>
    %5 = stablehlo.slice %4 [0:4, 0:16:3] : (tensor<4x16xf32>) -> tensor<4x6xf32>
    %c_17 = stablehlo.constant dense<16> : tensor<i64>
    %6 = stablehlo.broadcast_in_dim %c_17, dims = [] : (tensor<i64>) -> tensor<6xi64>
    %7 = stablehlo.add %c, %6 : tensor<6xi64>
    %8 = stablehlo.select %c_0, %7, %c : tensor<6xi1>, tensor<6xi64>
    %9 = stablehlo.convert %8 : (tensor<6xi64>) -> tensor<6xi32>
    %10 = stablehlo.broadcast_in_dim %9, dims = [0] : (tensor<6xi32>) -> tensor<6x1xi32>
    %11 = "stablehlo.scatter"(%4, %10, %3) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [0], inserted_window_dims = [1], scatter_dims_to_operand_dims = [1], index_vector_dim = 1>, unique_indices = false}> ({
    ^bb0(%arg4: tensor<f32>, %arg5: tensor<f32>):
      stablehlo.return %arg5 : tensor<f32>
    }) : (tensor<4x16xf32>, tensor<6x1xi32>, tensor<4x6xf32>) -> tensor<4x16xf32>
    %c_18 = stablehlo.constant dense<2> : tensor<i64>
    %c_19 = stablehlo.constant dense<0> : tensor<i64>
    %12 = stablehlo.dynamic_update_slice %arg0, %11, %c_18, %c_19 : (tensor<8x16xf32>, tensor<4x16xf32>, tensor<i64>, tensor<i64>) -> tensor<8x16xf32>
    %13 = stablehlo.slice %arg2 [0:1] : (tensor<2xf64>) -> tensor<1xf64>
    %14 = stablehlo.reshape %13 : (tensor<1xf64>) -> tensor<f64>
    %15 = stablehlo.convert %14 : (tensor<f64>) -> tensor<f32>
    %16 = stablehlo.broadcast_in_dim %15, dims = [] : (tensor<f32>) -> tensor<8xf32>
    %17 = stablehlo.broadcast_in_dim %16, dims = [0] : (tensor<8xf32>) -> tensor<8x1xf32>
    %c_20 = stablehlo.constant dense<0> : tensor<i64>
    %c_21 = stablehlo.constant dense<15> : tensor<i64>
    %18 = stablehlo.dynamic_update_slice %12, %17, %c_20, %c_21 : (tensor<8x16xf32>, tensor<8x1xf32>, tensor<i64>, tensor<i64>) -> tensor<8x16xf32>
    %19 = stablehlo.transpose %18, dims = [1, 0] : (tensor<8x16xf32>) -> tensor<16x8xf32>
    %20 = stablehlo.slice %19 [3:4, 0:8] : (tensor<16x8xf32>) -> tensor<1x8xf32>
    %21 = stablehlo.reshape %20 : (tensor<1x8xf32>) -> tensor<8xf32>
    %22 = stablehlo.slice %arg3 [0:1] : (tensor<6xi64>) -> tensor<1xi64>
    %23 = stablehlo.reshape %22 : (tensor<1xi64>) -> tensor<i64>
    %24 = stablehlo.convert %23 : (tensor<i64>) -> tensor<f32>
    %25 = stablehlo.broadcast_in_dim %24, dims = [] : (tensor<f32>) -> tensor<8xf32>
    %26 = stablehlo.multiply %21, %25 : tensor<8xf32>
    %27 = stablehlo.broadcast_in_dim %26, dims = [1] : (tensor<8xf32>) -> tensor<1x8xf32>
    %c_22 = stablehlo.constant dense<3> : tensor<i64>
    %c_23 = stablehlo.constant dense<0> : tensor<i64>
    %28 = stablehlo.dynamic_update_slice %19, %27, %c_22, %c_23 : (tensor<16x8xf32>, tensor<1x8xf32>, tensor<i64>, tensor<i64>) -> tensor<16x8xf32>
    %29 = stablehlo.transpose %28, dims = [1, 0] : (tensor<16x8xf32>) -> tensor<8x16xf32>
    %30 = call @diagonal(%29) : (tensor<8x16xf32>) -> tensor<8xf32>
    %31 = stablehlo.slice %arg3 [1:2] : (tensor<6xi64>) -> tensor<1xi64>
    %32 = stablehlo.reshape %31 : (tensor<1xi64>) -> tensor<i64>
    %33 = stablehlo.convert %32 : (tensor<i64>) -> tensor<f32>
    %34 = stablehlo.broadcast_in_dim %33, dims = [] : (tensor<f32>) -> tensor<8xf32>
    %35 = stablehlo.add %30, %34 : tensor<8xf32>
    %c_24 = stablehlo.constant dense<8> : tensor<i64>
    %36 = stablehlo.broadcast_in_dim %c_24, dims = [] : (tensor<i64>) -> tensor<8xi64>
    %37 = stablehlo.add %c_1, %36 : tensor<8xi64>
    %38 = stablehlo.select %c_2, %37, %c_1 : tensor<8xi1>, tensor<8xi64>
    %c_25 = stablehlo.constant dense<16> : tensor<i64>
    %39 = stablehlo.broadcast_in_dim %c_25, dims = [] : (tensor<i64>) -> tensor<8xi64>
    %40 = stablehlo.add %c_3, %39 : tensor<8xi64>
    %41 = stablehlo.select %c_4, %40, %c_3 : tensor<8xi1>, tensor<8xi64>
    %42 = stablehlo.convert %38 : (tensor<8xi64>) -> tensor<8xi32>
    %43 = stablehlo.convert %41 : (tensor<8xi64>) -> tensor<8xi32>
    %44 = stablehlo.broadcast_in_dim %42, dims = [0] : (tensor<8xi32>) -> tensor<8x1xi32>
    %45 = stablehlo.broadcast_in_dim %43, dims = [0] : (tensor<8xi32>) -> tensor<8x1xi32>
    %46 = stablehlo.concatenate %44, %45, dim = 1 : (tensor<8x1xi32>, tensor<8x1xi32>) -> tensor<8x2xi32>
    %47 = stablehlo.optimization_barrier %46 : tensor<8x2xi32>
    %48 = "stablehlo.scatter"(%29, %47, %35) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [0, 1], scatter_dims_to_operand_dims = [0, 1], index_vector_dim = 1>, unique_indices = false}> ({
    ^bb0(%arg4: tensor<f32>, %arg5: tensor<f32>):
      stablehlo.return %arg5 : tensor<f32>
    }) : (tensor<8x16xf32>, tensor<8x2xi32>, tensor<8xf32>) -> tensor<8x16xf32>
    %49 = stablehlo.reshape %48 : (tensor<8x16xf32>) -> tensor<128xf32>
    %c_26 = stablehlo.constant dense<128> : tensor<i64>
    %50 = stablehlo.broadcast_in_dim %c_26, dims = [] : (tensor<i64>) -> tensor<4x3xi64>
    %51 = stablehlo.add %c_5, %50 : tensor<4x3xi64>
    %52 = stablehlo.select %c_6, %51, %c_5 : tensor<4x3xi1>, tensor<4x3xi64>
    %53 = stablehlo.convert %52 : (tensor<4x3xi64>) -> tensor<4x3xi32>
    %54 = stablehlo.broadcast_in_dim %53, dims = [0, 1] : (tensor<4x3xi32>) -> tensor<4x3x1xi32>
    %55 = "stablehlo.gather"(%49, %54) <{dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 2>, indices_are_sorted = false, slice_sizes = array<i64: 1>}> : (tensor<128xf32>, tensor<4x3x1xi32>) -> tensor<4x3xf32>
    %56 = stablehlo.reshape %48 : (tensor<8x16xf32>) -> tensor<128xf32>
    %c_27 = stablehlo.constant dense<128> : tensor<i64>
    %57 = stablehlo.broadcast_in_dim %c_27, dims = [] : (tensor<i64>) -> tensor<3x4xi64>
    %58 = stablehlo.add %c_7, %57 : tensor<3x4xi64>
    %59 = stablehlo.select %c_8, %58, %c_7 : tensor<3x4xi1>, tensor<3x4xi64>
    %60 = stablehlo.convert %59 : (tensor<3x4xi64>) -> tensor<3x4xi32>
    %61 = stablehlo.broadcast_in_dim %60, dims = [0, 1] : (tensor<3x4xi32>) -> tensor<3x4x1xi32>
    %62 = "stablehlo.gather"(%56, %61) <{dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 2>, indices_are_sorted = false, slice_sizes = array<i64: 1>}> : (tensor<128xf32>, tensor<3x4x1xi32>) -> tensor<3x4xf32>
    %63 = stablehlo.transpose %62, dims = [1, 0] : (tensor<3x4xf32>) -> tensor<4x3xf32>
    %64 = stablehlo.subtract %55, %63 : tensor<4x3xf32>
    %65 = stablehlo.reshape %48 : (tensor<8x16xf32>) -> tensor<128xf32>
    %66 = stablehlo.reshape %64 : (tensor<4x3xf32>) -> tensor<12xf32>
    %c_28 = stablehlo.constant dense<12> : tensor<i64>
    %67 = stablehlo.broadcast_in_dim %c_28, dims = [] : (tensor<i64>) -> tensor<12xi64>
    %68 = stablehlo.add %c_9, %67 : tensor<12xi64>
    %69 = stablehlo.select %c_10, %68, %c_9 : tensor<12xi1>, tensor<12xi64>
    %70 = stablehlo.convert %69 : (tensor<12xi64>) -> tensor<12xi32>
    %71 = stablehlo.broadcast_in_dim %70, dims = [0] : (tensor<12xi32>) -> tensor<12x1xi32>
    %72 = "stablehlo.gather"(%66, %71) <{dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1>}> : (tensor<12xf32>, tensor<12x1xi32>) -> tensor<12xf32>
    %c_29 = stablehlo.constant dense<128> : tensor<i64>
    %73 = stablehlo.broadcast_in_dim %c_29, dims = [] : (tensor<i64>) -> tensor<12xi64>
    %74 = stablehlo.add %c_11, %73 : tensor<12xi64>
    %75 = stablehlo.select %c_12, %74, %c_11 : tensor<12xi1>, tensor<12xi64>
    %76 = stablehlo.convert %75 : (tensor<12xi64>) -> tensor<12xi32>
    %77 = stablehlo.broadcast_in_dim %76, dims = [0] : (tensor<12xi32>) -> tensor<12x1xi32>
    %78 = "stablehlo.scatter"(%65, %77, %72) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>, unique_indices = false}> ({
    ^bb0(%arg4: tensor<f32>, %arg5: tensor<f32>):
      stablehlo.return %arg5 : tensor<f32>
    }) : (tensor<128xf32>, tensor<12x1xi32>, tensor<12xf32>) -> tensor<128xf32>
    %79 = stablehlo.reshape %78 : (tensor<128xf32>) -> tensor<8x16xf32>
    %c_30 = stablehlo.constant dense<0> : tensor<i64>
    %80 = stablehlo.broadcast_in_dim %c_30, dims = [] : (tensor<i64>) -> tensor<3xi64>
    %81 = stablehlo.compare LT, %0, %80, SIGNED : (tensor<3xi64>, tensor<3xi64>) -> tensor<3xi1>
    %c_31 = stablehlo.constant dense<8> : tensor<i64>
    %82 = stablehlo.broadcast_in_dim %c_31, dims = [] : (tensor<i64>) -> tensor<3xi64>
    %83 = stablehlo.add %0, %82 : tensor<3xi64>
    %84 = stablehlo.select %81, %83, %0 : tensor<3xi1>, tensor<3xi64>
    %85 = stablehlo.convert %84 : (tensor<3xi64>) -> tensor<3xi32>
    %86 = stablehlo.broadcast_in_dim %85, dims = [0] : (tensor<3xi32>) -> tensor<3x1xi32>
    %c_32 = stablehlo.constant dense<7> : tensor<1xi32>
    %c_33 = stablehlo.constant dense<0> : tensor<i32>
    %87 = stablehlo.broadcast_in_dim %c_33, dims = [] : (tensor<i32>) -> tensor<3x1xi32>
    %88 = stablehlo.compare GE, %86, %87, SIGNED : (tensor<3x1xi32>, tensor<3x1xi32>) -> tensor<3x1xi1>
    %89 = stablehlo.broadcast_in_dim %c_32, dims = [1] : (tensor<1xi32>) -> tensor<1x1xi32>
    %90 = stablehlo.broadcast_in_dim %89, dims = [0, 1] : (tensor<1x1xi32>) -> tensor<3x1xi32>
    %91 = stablehlo.compare LE, %86, %90, SIGNED : (tensor<3x1xi32>, tensor<3x1xi32>) -> tensor<3x1xi1>
    %92 = stablehlo.and %88, %91 : tensor<3x1xi1>
    %c_34 = stablehlo.constant dense<true> : tensor<i1>
    %93 = stablehlo.reduce(%92 init: %c_34) applies stablehlo.and across dimensions = [1] : (tensor<3x1xi1>, tensor<i1>) -> tensor<3xi1>
    %94 = "stablehlo.gather"(%79, %86) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1, 16>}> : (tensor<8x16xf32>, tensor<3x1xi32>) -> tensor<3x16xf32>
    %95 = stablehlo.broadcast_in_dim %93, dims = [0] : (tensor<3xi1>) -> tensor<3x16xi1>
    %cst = stablehlo.constant dense<0x7FC00000> : tensor<f32>
    %96 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<3x16xf32>
    %97 = stablehlo.select %95, %94, %96 : tensor<3x16xi1>, tensor<3x16xf32>
    %98 = stablehlo.slice %arg3 [2:3] : (tensor<6xi64>) -> tensor<1xi64>
    %99 = stablehlo.reshape %98 : (tensor<1xi64>) -> tensor<i64>
    %100 = stablehlo.convert %99 : (tensor<i64>) -> tensor<f32>
    %101 = stablehlo.broadcast_in_dim %100, dims = [] : (tensor<f32>) -> tensor<3x16xf32>
    %102 = stablehlo.multiply %97, %101 : tensor<3x16xf32>
    %c_35 = stablehlo.constant dense<0> : tensor<i64>
    %103 = stablehlo.broadcast_in_dim %c_35, dims = [] : (tensor<i64>) -> tensor<3xi64>
    %104 = stablehlo.compare LT, %0, %103, SIGNED : (tensor<3xi64>, tensor<3xi64>) -> tensor<3xi1>
    %c_36 = stablehlo.constant dense<8> : tensor<i64>
    %105 = stablehlo.broadcast_in_dim %c_36, dims = [] : (tensor<i64>) -> tensor<3xi64>
    %106 = stablehlo.add %0, %105 : tensor<3xi64>
    %107 = stablehlo.select %104, %106, %0 : tensor<3xi1>, tensor<3xi64>
    %108 = stablehlo.convert %107 : (tensor<3xi64>) -> tensor<3xi32>
    %109 = stablehlo.broadcast_in_dim %108, dims = [0] : (tensor<3xi32>) -> tensor<3x1xi32>
    %110 = "stablehlo.scatter"(%79, %109, %102) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>, unique_indices = false}> ({
    ^bb0(%arg4: tensor<f32>, %arg5: tensor<f32>):
      stablehlo.return %arg5 : tensor<f32>
    }) : (tensor<8x16xf32>, tensor<3x1xi32>, tensor<3x16xf32>) -> tensor<8x16xf32>
    %111 = stablehlo.slice %arg3 [3:4] : (tensor<6xi64>) -> tensor<1xi64>
    %112 = stablehlo.reshape %111 : (tensor<1xi64>) -> tensor<i64>
    %113 = stablehlo.broadcast_in_dim %112, dims = [] : (tensor<i64>) -> tensor<3xi64>
    %114 = stablehlo.add %0, %113 : tensor<3xi64>
    %115 = stablehlo.slice %arg2 [1:2] : (tensor<2xf64>) -> tensor<1xf64>
    %116 = stablehlo.reshape %115 : (tensor<1xf64>) -> tensor<f64>
    %117 = stablehlo.convert %116 : (tensor<f64>) -> tensor<f32>
    %118 = stablehlo.broadcast_in_dim %117, dims = [] : (tensor<f32>) -> tensor<3xf32>
    %c_37 = stablehlo.constant dense<0> : tensor<i64>
    %119 = stablehlo.broadcast_in_dim %c_37, dims = [] : (tensor<i64>) -> tensor<3xi64>
    %120 = stablehlo.compare LT, %0, %119, SIGNED : (tensor<3xi64>, tensor<3xi64>) -> tensor<3xi1>
    %c_38 = stablehlo.constant dense<8> : tensor<i64>
    %121 = stablehlo.broadcast_in_dim %c_38, dims = [] : (tensor<i64>) -> tensor<3xi64>
    %122 = stablehlo.add %0, %121 : tensor<3xi64>
    %123 = stablehlo.select %120, %122, %0 : tensor<3xi1>, tensor<3xi64>
    %c_39 = stablehlo.constant dense<0> : tensor<i64>
    %124 = stablehlo.broadcast_in_dim %c_39, dims = [] : (tensor<i64>) -> tensor<3xi64>
    %125 = stablehlo.compare LT, %114, %124, SIGNED : (tensor<3xi64>, tensor<3xi64>) -> tensor<3xi1>
    %c_40 = stablehlo.constant dense<16> : tensor<i64>
    %126 = stablehlo.broadcast_in_dim %c_40, dims = [] : (tensor<i64>) -> tensor<3xi64>
    %127 = stablehlo.add %114, %126 : tensor<3xi64>
    %128 = stablehlo.select %125, %127, %114 : tensor<3xi1>, tensor<3xi64>
    %129 = stablehlo.convert %123 : (tensor<3xi64>) -> tensor<3xi32>
    %130 = stablehlo.convert %128 : (tensor<3xi64>) -> tensor<3xi32>
    %131 = stablehlo.broadcast_in_dim %129, dims = [0] : (tensor<3xi32>) -> tensor<3x1xi32>
    %132 = stablehlo.broadcast_in_dim %130, dims = [0] : (tensor<3xi32>) -> tensor<3x1xi32>
    %133 = stablehlo.concatenate %131, %132, dim = 1 : (tensor<3x1xi32>, tensor<3x1xi32>) -> tensor<3x2xi32>
    %cst_41 = stablehlo.constant dense<-0.000000e+00> : tensor<f64>
    %134 = stablehlo.convert %cst_41 : (tensor<f64>) -> tensor<f32>
    %135 = stablehlo.broadcast_in_dim %134, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %c_42 = stablehlo.constant dense<16> : tensor<i64>
    %136 = stablehlo.convert %c_42 : (tensor<i64>) -> tensor<i32>
    %137 = stablehlo.pad %133, %136, low = [0, 0], high = [5, 0], interior = [0, 0] : (tensor<3x2xi32>, tensor<i32>) -> tensor<8x2xi32>
    %c_43 = stablehlo.constant dense<0> : tensor<i64>
    %138 = stablehlo.convert %c_43 : (tensor<i64>) -> tensor<f32>
    %139 = stablehlo.pad %118, %138, low = [0], high = [5], interior = [0] : (tensor<3xf32>, tensor<f32>) -> tensor<8xf32>
    %140 = "stablehlo.scatter"(%135, %137, %139) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [0, 1], scatter_dims_to_operand_dims = [0, 1], index_vector_dim = 1>, unique_indices = false}> ({
    ^bb0(%arg4: tensor<f32>, %arg5: tensor<f32>):
      %179 = stablehlo.add %arg4, %arg5 : tensor<f32>
      stablehlo.return %179 : tensor<f32>
    }) : (tensor<8x16xf32>, tensor<8x2xi32>, tensor<8xf32>) -> tensor<8x16xf32>
    %141 = stablehlo.add %140, %110 : tensor<8x16xf32>
    %142 = stablehlo.slice %arg3 [4:5] : (tensor<6xi64>) -> tensor<1xi64>
    %143 = stablehlo.reshape %142 : (tensor<1xi64>) -> tensor<i64>
    %144 = stablehlo.convert %143 : (tensor<i64>) -> tensor<f32>
    %145 = stablehlo.broadcast_in_dim %144, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %146 = stablehlo.compare GT, %141, %145, FLOAT : (tensor<8x16xf32>, tensor<8x16xf32>) -> tensor<8x16xi1>
    %147 = stablehlo.slice %arg3 [5:6] : (tensor<6xi64>) -> tensor<1xi64>
    %148 = stablehlo.reshape %147 : (tensor<1xi64>) -> tensor<i64>
    %149 = stablehlo.convert %148 : (tensor<i64>) -> tensor<f32>
    %150 = call @_where(%146, %149, %141) : (tensor<8x16xi1>, tensor<f32>, tensor<8x16xf32>) -> tensor<8x16xf32>
    %151 = stablehlo.reshape %150 : (tensor<8x16xf32>) -> tensor<4x2x16xf32>
    %152 = stablehlo.slice %151 [0:4, 0:1, 0:16] : (tensor<4x2x16xf32>) -> tensor<4x1x16xf32>
    %153 = stablehlo.reshape %152 : (tensor<4x1x16xf32>) -> tensor<4x16xf32>
    %154 = stablehlo.reshape %153 : (tensor<4x16xf32>) -> tensor<1x4x16xf32>
    %155 = stablehlo.exponential %154 : tensor<1x4x16xf32>
    %156 = stablehlo.reshape %155 : (tensor<1x4x16xf32>) -> tensor<4x16xf32>
    %157 = stablehlo.broadcast_in_dim %156, dims = [0, 2] : (tensor<4x16xf32>) -> tensor<4x1x16xf32>
    %c_44 = stablehlo.constant dense<0> : tensor<i64>
    %c_45 = stablehlo.constant dense<0> : tensor<i64>
    %c_46 = stablehlo.constant dense<0> : tensor<i64>
    %158 = stablehlo.dynamic_update_slice %151, %157, %c_44, %c_45, %c_46 : (tensor<4x2x16xf32>, tensor<4x1x16xf32>, tensor<i64>, tensor<i64>, tensor<i64>) -> tensor<4x2x16xf32>
    %159 = stablehlo.reshape %158 : (tensor<4x2x16xf32>) -> tensor<8x16xf32>
    %cst_47 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %160 = stablehlo.broadcast_in_dim %cst_47, dims = [] : (tensor<f32>) -> tensor<8x4xf32>
    %161 = stablehlo.reshape %159 : (tensor<8x16xf32>) -> tensor<128xf32>
    %162 = stablehlo.reshape %160 : (tensor<8x4xf32>) -> tensor<32xf32>
    %c_48 = stablehlo.constant dense<32> : tensor<i64>
    %163 = stablehlo.broadcast_in_dim %c_48, dims = [] : (tensor<i64>) -> tensor<32xi64>
    %164 = stablehlo.add %c_13, %163 : tensor<32xi64>
    %165 = stablehlo.select %c_14, %164, %c_13 : tensor<32xi1>, tensor<32xi64>
    %166 = stablehlo.convert %165 : (tensor<32xi64>) -> tensor<32xi32>
    %167 = stablehlo.broadcast_in_dim %166, dims = [0] : (tensor<32xi32>) -> tensor<32x1xi32>
    %168 = "stablehlo.gather"(%162, %167) <{dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1>}> : (tensor<32xf32>, tensor<32x1xi32>) -> tensor<32xf32>
    %c_49 = stablehlo.constant dense<128> : tensor<i64>
    %169 = stablehlo.broadcast_in_dim %c_49, dims = [] : (tensor<i64>) -> tensor<32xi64>
    %170 = stablehlo.add %c_15, %169 : tensor<32xi64>
    %171 = stablehlo.select %c_16, %170, %c_15 : tensor<32xi1>, tensor<32xi64>
    %172 = stablehlo.convert %171 : (tensor<32xi64>) -> tensor<32xi32>
    %173 = stablehlo.broadcast_in_dim %172, dims = [0] : (tensor<32xi32>) -> tensor<32x1xi32>
    %174 = "stablehlo.scatter"(%161, %173, %168) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>, unique_indices = false}> ({
    ^bb0(%arg4: tensor<f32>, %arg5: tensor<f32>):
      stablehlo.return %arg5 : tensor<f32>
    }) : (tensor<128xf32>, tensor<32x1xi32>, tensor<32xf32>) -> tensor<128xf32>
    %175 = stablehlo.reshape %174 : (tensor<128xf32>) -> tensor<8x16xf32>
    %176 = stablehlo.transpose %175, dims = [1, 0] : (tensor<8x16xf32>) -> tensor<16x8xf32>
    %177 = stablehlo.reshape %176 : (tensor<16x8xf32>) -> tensor<128xf32>
    %178 = stablehlo.transpose %175, dims = [1, 0] : (tensor<8x16xf32>) -> tensor<16x8xf32>
    return %175, %177, %178 : tensor<8x16xf32>, tensor<128xf32>, tensor<16x8xf32>
  }
  func.func private @diagonal(%arg0: tensor<8x16xf32>) -> tensor<8xf32> {
    %0 = stablehlo.iota dim = 0 : tensor<8xi64>
    %1 = stablehlo.iota dim = 0 : tensor<8xi64>
    %c = stablehlo.constant dense<1> : tensor<i64>
    %2 = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<i64>) -> tensor<8xi64>
    %3 = stablehlo.add %2, %1 : tensor<8xi64>
    %c_0 = stablehlo.constant dense<0> : tensor<i64>
    %4 = stablehlo.broadcast_in_dim %c_0, dims = [] : (tensor<i64>) -> tensor<8xi64>
    %5 = stablehlo.compare LT, %0, %4, SIGNED : (tensor<8xi64>, tensor<8xi64>) -> tensor<8xi1>
    %c_1 = stablehlo.constant dense<8> : tensor<i64>
    %6 = stablehlo.broadcast_in_dim %c_1, dims = [] : (tensor<i64>) -> tensor<8xi64>
    %7 = stablehlo.add %0, %6 : tensor<8xi64>
    %8 = stablehlo.select %5, %7, %0 : tensor<8xi1>, tensor<8xi64>
    %c_2 = stablehlo.constant dense<0> : tensor<i64>
    %9 = stablehlo.broadcast_in_dim %c_2, dims = [] : (tensor<i64>) -> tensor<8xi64>
    %10 = stablehlo.compare LT, %3, %9, SIGNED : (tensor<8xi64>, tensor<8xi64>) -> tensor<8xi1>
    %c_3 = stablehlo.constant dense<16> : tensor<i64>
    %11 = stablehlo.broadcast_in_dim %c_3, dims = [] : (tensor<i64>) -> tensor<8xi64>
    %12 = stablehlo.add %3, %11 : tensor<8xi64>
    %13 = stablehlo.select %10, %12, %3 : tensor<8xi1>, tensor<8xi64>
    %14 = stablehlo.convert %8 : (tensor<8xi64>) -> tensor<8xi32>
    %15 = stablehlo.convert %13 : (tensor<8xi64>) -> tensor<8xi32>
    %16 = stablehlo.broadcast_in_dim %14, dims = [0] : (tensor<8xi32>) -> tensor<8x1xi32>
    %17 = stablehlo.broadcast_in_dim %15, dims = [0] : (tensor<8xi32>) -> tensor<8x1xi32>
    %18 = stablehlo.concatenate %16, %17, dim = 1 : (tensor<8x1xi32>, tensor<8x1xi32>) -> tensor<8x2xi32>
    %19 = "stablehlo.gather"(%arg0, %18) <{dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [0, 1], start_index_map = [0, 1], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1, 1>}> : (tensor<8x16xf32>, tensor<8x2xi32>) -> tensor<8xf32>
    return %19 : tensor<8xf32>
  }
  func.func private @_where(%arg0: tensor<8x16xi1>, %arg1: tensor<f32>, %arg2: tensor<8x16xf32>) -> tensor<8x16xf32> {
    %0 = stablehlo.broadcast_in_dim %arg1, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %1 = stablehlo.select %arg0, %0, %arg2 : tensor<8x16xi1>, tensor<8x16xf32>
    return %1 : tensor<8x16xf32>
  }
}

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
    %0 = stablehlo.slice %arg0 [1:5, 0:16] : (tensor<8x16xf32>) -> tensor<4x16xf32>
    %1 = stablehlo.slice %0 [0:4, 0:6] : (tensor<4x16xf32>) -> tensor<4x6xf32>
    %2 = stablehlo.cosine %1 : tensor<4x6xf32>
    %3 = stablehlo.slice %arg0 [2:6, 0:16] : (tensor<8x16xf32>) -> tensor<4x16xf32>
    %4 = stablehlo.slice %3 [0:4, 0:16:3] : (tensor<4x16xf32>) -> tensor<4x6xf32>
    %c_17 = stablehlo.constant dense<16> : tensor<i64>
    %5 = stablehlo.broadcast_in_dim %c_17, dims = [] : (tensor<i64>) -> tensor<6xi64>
    %6 = stablehlo.add %c, %5 : tensor<6xi64>
    %7 = stablehlo.select %c_0, %6, %c : tensor<6xi1>, tensor<6xi64>
    %8 = stablehlo.convert %7 : (tensor<6xi64>) -> tensor<6xi32>
    %9 = stablehlo.broadcast_in_dim %8, dims = [0] : (tensor<6xi32>) -> tensor<6x1xi32>
    %10 = "stablehlo.scatter"(%3, %9, %2) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [0], inserted_window_dims = [1], scatter_dims_to_operand_dims = [1], index_vector_dim = 1>, unique_indices = false}> ({
    ^bb0(%arg4: tensor<f32>, %arg5: tensor<f32>):
      stablehlo.return %arg5 : tensor<f32>
    }) : (tensor<4x16xf32>, tensor<6x1xi32>, tensor<4x6xf32>) -> tensor<4x16xf32>
    %c_18 = stablehlo.constant dense<2> : tensor<i64>
    %c_19 = stablehlo.constant dense<0> : tensor<i64>
    %11 = stablehlo.dynamic_update_slice %arg0, %10, %c_18, %c_19 : (tensor<8x16xf32>, tensor<4x16xf32>, tensor<i64>, tensor<i64>) -> tensor<8x16xf32>
    %12 = stablehlo.slice %arg2 [0:1] : (tensor<2xf64>) -> tensor<1xf64>
    %13 = stablehlo.reshape %12 : (tensor<1xf64>) -> tensor<f64>
    %14 = stablehlo.convert %13 : (tensor<f64>) -> tensor<f32>
    %15 = stablehlo.broadcast_in_dim %14, dims = [] : (tensor<f32>) -> tensor<8xf32>
    %16 = stablehlo.broadcast_in_dim %15, dims = [0] : (tensor<8xf32>) -> tensor<8x1xf32>
    %c_20 = stablehlo.constant dense<0> : tensor<i64>
    %c_21 = stablehlo.constant dense<15> : tensor<i64>
    %17 = stablehlo.dynamic_update_slice %11, %16, %c_20, %c_21 : (tensor<8x16xf32>, tensor<8x1xf32>, tensor<i64>, tensor<i64>) -> tensor<8x16xf32>
    %18 = stablehlo.transpose %17, dims = [1, 0] : (tensor<8x16xf32>) -> tensor<16x8xf32>
    %19 = stablehlo.slice %18 [3:4, 0:8] : (tensor<16x8xf32>) -> tensor<1x8xf32>
    %20 = stablehlo.reshape %19 : (tensor<1x8xf32>) -> tensor<8xf32>
    %21 = stablehlo.slice %arg3 [0:1] : (tensor<6xi64>) -> tensor<1xi64>
    %22 = stablehlo.reshape %21 : (tensor<1xi64>) -> tensor<i64>
    %23 = stablehlo.convert %22 : (tensor<i64>) -> tensor<f32>
    %24 = stablehlo.broadcast_in_dim %23, dims = [] : (tensor<f32>) -> tensor<8xf32>
    %25 = stablehlo.multiply %20, %24 : tensor<8xf32>
    %26 = stablehlo.broadcast_in_dim %25, dims = [1] : (tensor<8xf32>) -> tensor<1x8xf32>
    %c_22 = stablehlo.constant dense<3> : tensor<i64>
    %c_23 = stablehlo.constant dense<0> : tensor<i64>
    %27 = stablehlo.dynamic_update_slice %18, %26, %c_22, %c_23 : (tensor<16x8xf32>, tensor<1x8xf32>, tensor<i64>, tensor<i64>) -> tensor<16x8xf32>
    %28 = stablehlo.transpose %27, dims = [1, 0] : (tensor<16x8xf32>) -> tensor<8x16xf32>
    %29 = call @diagonal(%28) : (tensor<8x16xf32>) -> tensor<8xf32>
    %30 = stablehlo.slice %arg3 [1:2] : (tensor<6xi64>) -> tensor<1xi64>
    %31 = stablehlo.reshape %30 : (tensor<1xi64>) -> tensor<i64>
    %32 = stablehlo.convert %31 : (tensor<i64>) -> tensor<f32>
    %33 = stablehlo.broadcast_in_dim %32, dims = [] : (tensor<f32>) -> tensor<8xf32>
    %34 = stablehlo.add %29, %33 : tensor<8xf32>
    %c_24 = stablehlo.constant dense<8> : tensor<i64>
    %35 = stablehlo.broadcast_in_dim %c_24, dims = [] : (tensor<i64>) -> tensor<8xi64>
    %36 = stablehlo.add %c_1, %35 : tensor<8xi64>
    %37 = stablehlo.select %c_2, %36, %c_1 : tensor<8xi1>, tensor<8xi64>
    %c_25 = stablehlo.constant dense<16> : tensor<i64>
    %38 = stablehlo.broadcast_in_dim %c_25, dims = [] : (tensor<i64>) -> tensor<8xi64>
    %39 = stablehlo.add %c_3, %38 : tensor<8xi64>
    %40 = stablehlo.select %c_4, %39, %c_3 : tensor<8xi1>, tensor<8xi64>
    %41 = stablehlo.convert %37 : (tensor<8xi64>) -> tensor<8xi32>
    %42 = stablehlo.convert %40 : (tensor<8xi64>) -> tensor<8xi32>
    %43 = stablehlo.broadcast_in_dim %41, dims = [0] : (tensor<8xi32>) -> tensor<8x1xi32>
    %44 = stablehlo.broadcast_in_dim %42, dims = [0] : (tensor<8xi32>) -> tensor<8x1xi32>
    %45 = stablehlo.concatenate %43, %44, dim = 1 : (tensor<8x1xi32>, tensor<8x1xi32>) -> tensor<8x2xi32>
    %46 = stablehlo.optimization_barrier %45 : tensor<8x2xi32>
    %47 = "stablehlo.scatter"(%28, %46, %34) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [0, 1], scatter_dims_to_operand_dims = [0, 1], index_vector_dim = 1>, unique_indices = false}> ({
    ^bb0(%arg4: tensor<f32>, %arg5: tensor<f32>):
      stablehlo.return %arg5 : tensor<f32>
    }) : (tensor<8x16xf32>, tensor<8x2xi32>, tensor<8xf32>) -> tensor<8x16xf32>
    %48 = stablehlo.reshape %47 : (tensor<8x16xf32>) -> tensor<128xf32>
    %c_26 = stablehlo.constant dense<128> : tensor<i64>
    %49 = stablehlo.broadcast_in_dim %c_26, dims = [] : (tensor<i64>) -> tensor<4x3xi64>
    %50 = stablehlo.add %c_5, %49 : tensor<4x3xi64>
    %51 = stablehlo.select %c_6, %50, %c_5 : tensor<4x3xi1>, tensor<4x3xi64>
    %52 = stablehlo.convert %51 : (tensor<4x3xi64>) -> tensor<4x3xi32>
    %53 = stablehlo.broadcast_in_dim %52, dims = [0, 1] : (tensor<4x3xi32>) -> tensor<4x3x1xi32>
    %54 = "stablehlo.gather"(%48, %53) <{dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 2>, indices_are_sorted = false, slice_sizes = array<i64: 1>}> : (tensor<128xf32>, tensor<4x3x1xi32>) -> tensor<4x3xf32>
    %55 = stablehlo.reshape %47 : (tensor<8x16xf32>) -> tensor<128xf32>
    %c_27 = stablehlo.constant dense<128> : tensor<i64>
    %56 = stablehlo.broadcast_in_dim %c_27, dims = [] : (tensor<i64>) -> tensor<3x4xi64>
    %57 = stablehlo.add %c_7, %56 : tensor<3x4xi64>
    %58 = stablehlo.select %c_8, %57, %c_7 : tensor<3x4xi1>, tensor<3x4xi64>
    %59 = stablehlo.convert %58 : (tensor<3x4xi64>) -> tensor<3x4xi32>
    %60 = stablehlo.broadcast_in_dim %59, dims = [0, 1] : (tensor<3x4xi32>) -> tensor<3x4x1xi32>
    %61 = "stablehlo.gather"(%55, %60) <{dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 2>, indices_are_sorted = false, slice_sizes = array<i64: 1>}> : (tensor<128xf32>, tensor<3x4x1xi32>) -> tensor<3x4xf32>
    %62 = stablehlo.transpose %61, dims = [1, 0] : (tensor<3x4xf32>) -> tensor<4x3xf32>
    %63 = stablehlo.subtract %54, %62 : tensor<4x3xf32>
    %64 = stablehlo.reshape %47 : (tensor<8x16xf32>) -> tensor<128xf32>
    %65 = stablehlo.reshape %63 : (tensor<4x3xf32>) -> tensor<12xf32>
    %c_28 = stablehlo.constant dense<12> : tensor<i64>
    %66 = stablehlo.broadcast_in_dim %c_28, dims = [] : (tensor<i64>) -> tensor<12xi64>
    %67 = stablehlo.add %c_9, %66 : tensor<12xi64>
    %68 = stablehlo.select %c_10, %67, %c_9 : tensor<12xi1>, tensor<12xi64>
    %69 = stablehlo.convert %68 : (tensor<12xi64>) -> tensor<12xi32>
    %70 = stablehlo.broadcast_in_dim %69, dims = [0] : (tensor<12xi32>) -> tensor<12x1xi32>
    %71 = "stablehlo.gather"(%65, %70) <{dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1>}> : (tensor<12xf32>, tensor<12x1xi32>) -> tensor<12xf32>
    %c_29 = stablehlo.constant dense<128> : tensor<i64>
    %72 = stablehlo.broadcast_in_dim %c_29, dims = [] : (tensor<i64>) -> tensor<12xi64>
    %73 = stablehlo.add %c_11, %72 : tensor<12xi64>
    %74 = stablehlo.select %c_12, %73, %c_11 : tensor<12xi1>, tensor<12xi64>
    %75 = stablehlo.convert %74 : (tensor<12xi64>) -> tensor<12xi32>
    %76 = stablehlo.broadcast_in_dim %75, dims = [0] : (tensor<12xi32>) -> tensor<12x1xi32>
    %77 = "stablehlo.scatter"(%64, %76, %71) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>, unique_indices = false}> ({
    ^bb0(%arg4: tensor<f32>, %arg5: tensor<f32>):
      stablehlo.return %arg5 : tensor<f32>
    }) : (tensor<128xf32>, tensor<12x1xi32>, tensor<12xf32>) -> tensor<128xf32>
    %78 = stablehlo.reshape %77 : (tensor<128xf32>) -> tensor<8x16xf32>
    %c_30 = stablehlo.constant dense<0> : tensor<i64>
    %79 = stablehlo.broadcast_in_dim %c_30, dims = [] : (tensor<i64>) -> tensor<3xi64>
    %80 = stablehlo.compare LT, %arg1, %79, SIGNED : (tensor<3xi64>, tensor<3xi64>) -> tensor<3xi1>
    %c_31 = stablehlo.constant dense<8> : tensor<i64>
    %81 = stablehlo.broadcast_in_dim %c_31, dims = [] : (tensor<i64>) -> tensor<3xi64>
    %82 = stablehlo.add %arg1, %81 : tensor<3xi64>
    %83 = stablehlo.select %80, %82, %arg1 : tensor<3xi1>, tensor<3xi64>
    %84 = stablehlo.convert %83 : (tensor<3xi64>) -> tensor<3xi32>
    %85 = stablehlo.broadcast_in_dim %84, dims = [0] : (tensor<3xi32>) -> tensor<3x1xi32>
    %c_32 = stablehlo.constant dense<7> : tensor<1xi32>
    %c_33 = stablehlo.constant dense<0> : tensor<i32>
    %86 = stablehlo.broadcast_in_dim %c_33, dims = [] : (tensor<i32>) -> tensor<3x1xi32>
    %87 = stablehlo.compare GE, %85, %86, SIGNED : (tensor<3x1xi32>, tensor<3x1xi32>) -> tensor<3x1xi1>
    %88 = stablehlo.broadcast_in_dim %c_32, dims = [1] : (tensor<1xi32>) -> tensor<1x1xi32>
    %89 = stablehlo.broadcast_in_dim %88, dims = [0, 1] : (tensor<1x1xi32>) -> tensor<3x1xi32>
    %90 = stablehlo.compare LE, %85, %89, SIGNED : (tensor<3x1xi32>, tensor<3x1xi32>) -> tensor<3x1xi1>
    %91 = stablehlo.and %87, %90 : tensor<3x1xi1>
    %c_34 = stablehlo.constant dense<true> : tensor<i1>
    %92 = stablehlo.reduce(%91 init: %c_34) applies stablehlo.and across dimensions = [1] : (tensor<3x1xi1>, tensor<i1>) -> tensor<3xi1>
    %93 = "stablehlo.gather"(%78, %85) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1, 16>}> : (tensor<8x16xf32>, tensor<3x1xi32>) -> tensor<3x16xf32>
    %94 = stablehlo.broadcast_in_dim %92, dims = [0] : (tensor<3xi1>) -> tensor<3x16xi1>
    %cst = stablehlo.constant dense<0x7FC00000> : tensor<f32>
    %95 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<3x16xf32>
    %96 = stablehlo.select %94, %93, %95 : tensor<3x16xi1>, tensor<3x16xf32>
    %97 = stablehlo.slice %arg3 [2:3] : (tensor<6xi64>) -> tensor<1xi64>
    %98 = stablehlo.reshape %97 : (tensor<1xi64>) -> tensor<i64>
    %99 = stablehlo.convert %98 : (tensor<i64>) -> tensor<f32>
    %100 = stablehlo.broadcast_in_dim %99, dims = [] : (tensor<f32>) -> tensor<3x16xf32>
    %101 = stablehlo.multiply %96, %100 : tensor<3x16xf32>
    %c_35 = stablehlo.constant dense<0> : tensor<i64>
    %102 = stablehlo.broadcast_in_dim %c_35, dims = [] : (tensor<i64>) -> tensor<3xi64>
    %103 = stablehlo.compare LT, %arg1, %102, SIGNED : (tensor<3xi64>, tensor<3xi64>) -> tensor<3xi1>
    %c_36 = stablehlo.constant dense<8> : tensor<i64>
    %104 = stablehlo.broadcast_in_dim %c_36, dims = [] : (tensor<i64>) -> tensor<3xi64>
    %105 = stablehlo.add %arg1, %104 : tensor<3xi64>
    %106 = stablehlo.select %103, %105, %arg1 : tensor<3xi1>, tensor<3xi64>
    %107 = stablehlo.convert %106 : (tensor<3xi64>) -> tensor<3xi32>
    %108 = stablehlo.broadcast_in_dim %107, dims = [0] : (tensor<3xi32>) -> tensor<3x1xi32>
    %109 = "stablehlo.scatter"(%78, %108, %101) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>, unique_indices = false}> ({
    ^bb0(%arg4: tensor<f32>, %arg5: tensor<f32>):
      stablehlo.return %arg5 : tensor<f32>
    }) : (tensor<8x16xf32>, tensor<3x1xi32>, tensor<3x16xf32>) -> tensor<8x16xf32>
    %110 = stablehlo.slice %arg3 [3:4] : (tensor<6xi64>) -> tensor<1xi64>
    %111 = stablehlo.reshape %110 : (tensor<1xi64>) -> tensor<i64>
    %112 = stablehlo.broadcast_in_dim %111, dims = [] : (tensor<i64>) -> tensor<3xi64>
    %113 = stablehlo.add %arg1, %112 : tensor<3xi64>
    %114 = stablehlo.slice %arg2 [1:2] : (tensor<2xf64>) -> tensor<1xf64>
    %115 = stablehlo.reshape %114 : (tensor<1xf64>) -> tensor<f64>
    %116 = stablehlo.convert %115 : (tensor<f64>) -> tensor<f32>
    %117 = stablehlo.broadcast_in_dim %116, dims = [] : (tensor<f32>) -> tensor<3xf32>
    %c_37 = stablehlo.constant dense<0> : tensor<i64>
    %118 = stablehlo.broadcast_in_dim %c_37, dims = [] : (tensor<i64>) -> tensor<3xi64>
    %119 = stablehlo.compare LT, %arg1, %118, SIGNED : (tensor<3xi64>, tensor<3xi64>) -> tensor<3xi1>
    %c_38 = stablehlo.constant dense<8> : tensor<i64>
    %120 = stablehlo.broadcast_in_dim %c_38, dims = [] : (tensor<i64>) -> tensor<3xi64>
    %121 = stablehlo.add %arg1, %120 : tensor<3xi64>
    %122 = stablehlo.select %119, %121, %arg1 : tensor<3xi1>, tensor<3xi64>
    %c_39 = stablehlo.constant dense<0> : tensor<i64>
    %123 = stablehlo.broadcast_in_dim %c_39, dims = [] : (tensor<i64>) -> tensor<3xi64>
    %124 = stablehlo.compare LT, %113, %123, SIGNED : (tensor<3xi64>, tensor<3xi64>) -> tensor<3xi1>
    %c_40 = stablehlo.constant dense<16> : tensor<i64>
    %125 = stablehlo.broadcast_in_dim %c_40, dims = [] : (tensor<i64>) -> tensor<3xi64>
    %126 = stablehlo.add %113, %125 : tensor<3xi64>
    %127 = stablehlo.select %124, %126, %113 : tensor<3xi1>, tensor<3xi64>
    %128 = stablehlo.convert %122 : (tensor<3xi64>) -> tensor<3xi32>
    %129 = stablehlo.convert %127 : (tensor<3xi64>) -> tensor<3xi32>
    %130 = stablehlo.broadcast_in_dim %128, dims = [0] : (tensor<3xi32>) -> tensor<3x1xi32>
    %131 = stablehlo.broadcast_in_dim %129, dims = [0] : (tensor<3xi32>) -> tensor<3x1xi32>
    %132 = stablehlo.concatenate %130, %131, dim = 1 : (tensor<3x1xi32>, tensor<3x1xi32>) -> tensor<3x2xi32>
    %cst_41 = stablehlo.constant dense<-0.000000e+00> : tensor<f64>
    %133 = stablehlo.convert %cst_41 : (tensor<f64>) -> tensor<f32>
    %134 = stablehlo.broadcast_in_dim %133, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %c_42 = stablehlo.constant dense<16> : tensor<i64>
    %135 = stablehlo.convert %c_42 : (tensor<i64>) -> tensor<i32>
    %136 = stablehlo.pad %132, %135, low = [0, 0], high = [5, 0], interior = [0, 0] : (tensor<3x2xi32>, tensor<i32>) -> tensor<8x2xi32>
    %c_43 = stablehlo.constant dense<0> : tensor<i64>
    %137 = stablehlo.convert %c_43 : (tensor<i64>) -> tensor<f32>
    %138 = stablehlo.pad %117, %137, low = [0], high = [5], interior = [0] : (tensor<3xf32>, tensor<f32>) -> tensor<8xf32>
    %139 = "stablehlo.scatter"(%134, %136, %138) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [0, 1], scatter_dims_to_operand_dims = [0, 1], index_vector_dim = 1>, unique_indices = false}> ({
    ^bb0(%arg4: tensor<f32>, %arg5: tensor<f32>):
      %178 = stablehlo.add %arg4, %arg5 : tensor<f32>
      stablehlo.return %178 : tensor<f32>
    }) : (tensor<8x16xf32>, tensor<8x2xi32>, tensor<8xf32>) -> tensor<8x16xf32>
    %140 = stablehlo.add %139, %109 : tensor<8x16xf32>
    %141 = stablehlo.slice %arg3 [4:5] : (tensor<6xi64>) -> tensor<1xi64>
    %142 = stablehlo.reshape %141 : (tensor<1xi64>) -> tensor<i64>
    %143 = stablehlo.convert %142 : (tensor<i64>) -> tensor<f32>
    %144 = stablehlo.broadcast_in_dim %143, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %145 = stablehlo.compare GT, %140, %144, FLOAT : (tensor<8x16xf32>, tensor<8x16xf32>) -> tensor<8x16xi1>
    %146 = stablehlo.slice %arg3 [5:6] : (tensor<6xi64>) -> tensor<1xi64>
    %147 = stablehlo.reshape %146 : (tensor<1xi64>) -> tensor<i64>
    %148 = stablehlo.convert %147 : (tensor<i64>) -> tensor<f32>
    %149 = call @_where(%145, %148, %140) : (tensor<8x16xi1>, tensor<f32>, tensor<8x16xf32>) -> tensor<8x16xf32>
    %150 = stablehlo.reshape %149 : (tensor<8x16xf32>) -> tensor<4x2x16xf32>
    %151 = stablehlo.slice %150 [0:4, 0:1, 0:16] : (tensor<4x2x16xf32>) -> tensor<4x1x16xf32>
    %152 = stablehlo.reshape %151 : (tensor<4x1x16xf32>) -> tensor<4x16xf32>
    %153 = stablehlo.reshape %152 : (tensor<4x16xf32>) -> tensor<1x4x16xf32>
    %154 = stablehlo.exponential %153 : tensor<1x4x16xf32>
    %155 = stablehlo.reshape %154 : (tensor<1x4x16xf32>) -> tensor<4x16xf32>
    %156 = stablehlo.broadcast_in_dim %155, dims = [0, 2] : (tensor<4x16xf32>) -> tensor<4x1x16xf32>
    %c_44 = stablehlo.constant dense<0> : tensor<i64>
    %c_45 = stablehlo.constant dense<0> : tensor<i64>
    %c_46 = stablehlo.constant dense<0> : tensor<i64>
    %157 = stablehlo.dynamic_update_slice %150, %156, %c_44, %c_45, %c_46 : (tensor<4x2x16xf32>, tensor<4x1x16xf32>, tensor<i64>, tensor<i64>, tensor<i64>) -> tensor<4x2x16xf32>
    %158 = stablehlo.reshape %157 : (tensor<4x2x16xf32>) -> tensor<8x16xf32>
    %cst_47 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %159 = stablehlo.broadcast_in_dim %cst_47, dims = [] : (tensor<f32>) -> tensor<8x4xf32>
    %160 = stablehlo.reshape %158 : (tensor<8x16xf32>) -> tensor<128xf32>
    %161 = stablehlo.reshape %159 : (tensor<8x4xf32>) -> tensor<32xf32>
    %c_48 = stablehlo.constant dense<32> : tensor<i64>
    %162 = stablehlo.broadcast_in_dim %c_48, dims = [] : (tensor<i64>) -> tensor<32xi64>
    %163 = stablehlo.add %c_13, %162 : tensor<32xi64>
    %164 = stablehlo.select %c_14, %163, %c_13 : tensor<32xi1>, tensor<32xi64>
    %165 = stablehlo.convert %164 : (tensor<32xi64>) -> tensor<32xi32>
    %166 = stablehlo.broadcast_in_dim %165, dims = [0] : (tensor<32xi32>) -> tensor<32x1xi32>
    %167 = "stablehlo.gather"(%161, %166) <{dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1>}> : (tensor<32xf32>, tensor<32x1xi32>) -> tensor<32xf32>
    %c_49 = stablehlo.constant dense<128> : tensor<i64>
    %168 = stablehlo.broadcast_in_dim %c_49, dims = [] : (tensor<i64>) -> tensor<32xi64>
    %169 = stablehlo.add %c_15, %168 : tensor<32xi64>
    %170 = stablehlo.select %c_16, %169, %c_15 : tensor<32xi1>, tensor<32xi64>
    %171 = stablehlo.convert %170 : (tensor<32xi64>) -> tensor<32xi32>
    %172 = stablehlo.broadcast_in_dim %171, dims = [0] : (tensor<32xi32>) -> tensor<32x1xi32>
    %173 = "stablehlo.scatter"(%160, %172, %167) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>, unique_indices = false}> ({
    ^bb0(%arg4: tensor<f32>, %arg5: tensor<f32>):
      stablehlo.return %arg5 : tensor<f32>
    }) : (tensor<128xf32>, tensor<32x1xi32>, tensor<32xf32>) -> tensor<128xf32>
    %174 = stablehlo.reshape %173 : (tensor<128xf32>) -> tensor<8x16xf32>
    %175 = stablehlo.transpose %174, dims = [1, 0] : (tensor<8x16xf32>) -> tensor<16x8xf32>
    %176 = stablehlo.reshape %175 : (tensor<16x8xf32>) -> tensor<128xf32>
    %177 = stablehlo.transpose %174, dims = [1, 0] : (tensor<8x16xf32>) -> tensor<16x8xf32>
    return %174, %176, %177 : tensor<8x16xf32>, tensor<128xf32>, tensor<16x8xf32>
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

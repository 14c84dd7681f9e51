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
    %15 = stablehlo.slice %11 [0:8, 15:16] : (tensor<8x16xf32>) -> tensor<8x1xf32>
    %16 = stablehlo.reshape %15 : (tensor<8x1xf32>) -> tensor<8xf32>
    %17 = stablehlo.reshape %14 : (tensor<f32>) -> tensor<f32>
    %18 = stablehlo.broadcast_in_dim %17, dims = [] : (tensor<f32>) -> tensor<8xf32>
    %19 = stablehlo.broadcast_in_dim %18, dims = [0] : (tensor<8xf32>) -> tensor<8x1xf32>
    %c_20 = stablehlo.constant dense<0> : tensor<i64>
    %c_21 = stablehlo.constant dense<15> : tensor<i64>
    %20 = stablehlo.dynamic_update_slice %11, %19, %c_20, %c_21 : (tensor<8x16xf32>, tensor<8x1xf32>, tensor<i64>, tensor<i64>) -> tensor<8x16xf32>
    %21 = stablehlo.transpose %20, dims = [1, 0] : (tensor<8x16xf32>) -> tensor<16x8xf32>
    %22 = stablehlo.slice %21 [3:4, 0:8] : (tensor<16x8xf32>) -> tensor<1x8xf32>
    %23 = stablehlo.reshape %22 : (tensor<1x8xf32>) -> tensor<8xf32>
    %24 = stablehlo.slice %arg3 [0:1] : (tensor<6xi64>) -> tensor<1xi64>
    %25 = stablehlo.reshape %24 : (tensor<1xi64>) -> tensor<i64>
    %26 = stablehlo.convert %25 : (tensor<i64>) -> tensor<f32>
    %27 = stablehlo.broadcast_in_dim %26, dims = [] : (tensor<f32>) -> tensor<8xf32>
    %28 = stablehlo.multiply %23, %27 : tensor<8xf32>
    %29 = stablehlo.broadcast_in_dim %28, dims = [1] : (tensor<8xf32>) -> tensor<1x8xf32>
    %c_22 = stablehlo.constant dense<3> : tensor<i64>
    %c_23 = stablehlo.constant dense<0> : tensor<i64>
    %30 = stablehlo.dynamic_update_slice %21, %29, %c_22, %c_23 : (tensor<16x8xf32>, tensor<1x8xf32>, tensor<i64>, tensor<i64>) -> tensor<16x8xf32>
    %31 = stablehlo.transpose %30, dims = [1, 0] : (tensor<16x8xf32>) -> tensor<8x16xf32>
    %32 = call @diagonal(%31) : (tensor<8x16xf32>) -> tensor<8xf32>
    %33 = stablehlo.slice %arg3 [1:2] : (tensor<6xi64>) -> tensor<1xi64>
    %34 = stablehlo.reshape %33 : (tensor<1xi64>) -> tensor<i64>
    %35 = stablehlo.convert %34 : (tensor<i64>) -> tensor<f32>
    %36 = stablehlo.broadcast_in_dim %35, dims = [] : (tensor<f32>) -> tensor<8xf32>
    %37 = stablehlo.add %32, %36 : tensor<8xf32>
    %c_24 = stablehlo.constant dense<8> : tensor<i64>
    %38 = stablehlo.broadcast_in_dim %c_24, dims = [] : (tensor<i64>) -> tensor<8xi64>
    %39 = stablehlo.add %c_1, %38 : tensor<8xi64>
    %40 = stablehlo.select %c_2, %39, %c_1 : tensor<8xi1>, tensor<8xi64>
    %c_25 = stablehlo.constant dense<16> : tensor<i64>
    %41 = stablehlo.broadcast_in_dim %c_25, dims = [] : (tensor<i64>) -> tensor<8xi64>
    %42 = stablehlo.add %c_3, %41 : tensor<8xi64>
    %43 = stablehlo.select %c_4, %42, %c_3 : tensor<8xi1>, tensor<8xi64>
    %44 = stablehlo.convert %40 : (tensor<8xi64>) -> tensor<8xi32>
    %45 = stablehlo.convert %43 : (tensor<8xi64>) -> tensor<8xi32>
    %46 = stablehlo.broadcast_in_dim %44, dims = [0] : (tensor<8xi32>) -> tensor<8x1xi32>
    %47 = stablehlo.broadcast_in_dim %45, dims = [0] : (tensor<8xi32>) -> tensor<8x1xi32>
    %48 = stablehlo.concatenate %46, %47, dim = 1 : (tensor<8x1xi32>, tensor<8x1xi32>) -> tensor<8x2xi32>
    %49 = "stablehlo.scatter"(%31, %48, %37) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [0, 1], scatter_dims_to_operand_dims = [0, 1], index_vector_dim = 1>, unique_indices = false}> ({
    ^bb0(%arg4: tensor<f32>, %arg5: tensor<f32>):
      stablehlo.return %arg5 : tensor<f32>
    }) : (tensor<8x16xf32>, tensor<8x2xi32>, tensor<8xf32>) -> tensor<8x16xf32>
    %50 = stablehlo.reshape %49 : (tensor<8x16xf32>) -> tensor<128xf32>
    %c_26 = stablehlo.constant dense<128> : tensor<i64>
    %51 = stablehlo.broadcast_in_dim %c_26, dims = [] : (tensor<i64>) -> tensor<4x3xi64>
    %52 = stablehlo.add %c_5, %51 : tensor<4x3xi64>
    %53 = stablehlo.select %c_6, %52, %c_5 : tensor<4x3xi1>, tensor<4x3xi64>
    %54 = stablehlo.convert %53 : (tensor<4x3xi64>) -> tensor<4x3xi32>
    %55 = stablehlo.broadcast_in_dim %54, dims = [0, 1] : (tensor<4x3xi32>) -> tensor<4x3x1xi32>
    %56 = "stablehlo.gather"(%50, %55) <{dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 2>, indices_are_sorted = false, slice_sizes = array<i64: 1>}> : (tensor<128xf32>, tensor<4x3x1xi32>) -> tensor<4x3xf32>
    %57 = stablehlo.reshape %49 : (tensor<8x16xf32>) -> tensor<128xf32>
    %c_27 = stablehlo.constant dense<128> : tensor<i64>
    %58 = stablehlo.broadcast_in_dim %c_27, dims = [] : (tensor<i64>) -> tensor<3x4xi64>
    %59 = stablehlo.add %c_7, %58 : tensor<3x4xi64>
    %60 = stablehlo.select %c_8, %59, %c_7 : tensor<3x4xi1>, tensor<3x4xi64>
    %61 = stablehlo.convert %60 : (tensor<3x4xi64>) -> tensor<3x4xi32>
    %62 = stablehlo.broadcast_in_dim %61, dims = [0, 1] : (tensor<3x4xi32>) -> tensor<3x4x1xi32>
    %63 = "stablehlo.gather"(%57, %62) <{dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 2>, indices_are_sorted = false, slice_sizes = array<i64: 1>}> : (tensor<128xf32>, tensor<3x4x1xi32>) -> tensor<3x4xf32>
    %64 = stablehlo.transpose %63, dims = [1, 0] : (tensor<3x4xf32>) -> tensor<4x3xf32>
    %65 = stablehlo.subtract %56, %64 : tensor<4x3xf32>
    %66 = stablehlo.reshape %49 : (tensor<8x16xf32>) -> tensor<128xf32>
    %67 = stablehlo.reshape %65 : (tensor<4x3xf32>) -> tensor<12xf32>
    %c_28 = stablehlo.constant dense<12> : tensor<i64>
    %68 = stablehlo.broadcast_in_dim %c_28, dims = [] : (tensor<i64>) -> tensor<12xi64>
    %69 = stablehlo.add %c_9, %68 : tensor<12xi64>
    %70 = stablehlo.select %c_10, %69, %c_9 : tensor<12xi1>, tensor<12xi64>
    %71 = stablehlo.convert %70 : (tensor<12xi64>) -> tensor<12xi32>
    %72 = stablehlo.broadcast_in_dim %71, dims = [0] : (tensor<12xi32>) -> tensor<12x1xi32>
    %73 = "stablehlo.gather"(%67, %72) <{dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1>}> : (tensor<12xf32>, tensor<12x1xi32>) -> tensor<12xf32>
    %c_29 = stablehlo.constant dense<128> : tensor<i64>
    %74 = stablehlo.broadcast_in_dim %c_29, dims = [] : (tensor<i64>) -> tensor<12xi64>
    %75 = stablehlo.add %c_11, %74 : tensor<12xi64>
    %76 = stablehlo.select %c_12, %75, %c_11 : tensor<12xi1>, tensor<12xi64>
    %77 = stablehlo.convert %76 : (tensor<12xi64>) -> tensor<12xi32>
    %78 = stablehlo.broadcast_in_dim %77, dims = [0] : (tensor<12xi32>) -> tensor<12x1xi32>
    %79 = "stablehlo.scatter"(%66, %78, %73) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>, unique_indices = false}> ({
    ^bb0(%arg4: tensor<f32>, %arg5: tensor<f32>):
      stablehlo.return %arg5 : tensor<f32>
    }) : (tensor<128xf32>, tensor<12x1xi32>, tensor<12xf32>) -> tensor<128xf32>
    %80 = stablehlo.reshape %79 : (tensor<128xf32>) -> tensor<8x16xf32>
    %c_30 = stablehlo.constant dense<0> : tensor<i64>
    %81 = stablehlo.broadcast_in_dim %c_30, dims = [] : (tensor<i64>) -> tensor<3xi64>
    %82 = stablehlo.compare LT, %arg1, %81, SIGNED : (tensor<3xi64>, tensor<3xi64>) -> tensor<3xi1>
    %c_31 = stablehlo.constant dense<8> : tensor<i64>
    %83 = stablehlo.broadcast_in_dim %c_31, dims = [] : (tensor<i64>) -> tensor<3xi64>
    %84 = stablehlo.add %arg1, %83 : tensor<3xi64>
    %85 = stablehlo.select %82, %84, %arg1 : tensor<3xi1>, tensor<3xi64>
    %86 = stablehlo.convert %85 : (tensor<3xi64>) -> tensor<3xi32>
    %87 = stablehlo.broadcast_in_dim %86, dims = [0] : (tensor<3xi32>) -> tensor<3x1xi32>
    %c_32 = stablehlo.constant dense<7> : tensor<1xi32>
    %c_33 = stablehlo.constant dense<0> : tensor<i32>
    %88 = stablehlo.broadcast_in_dim %c_33, dims = [] : (tensor<i32>) -> tensor<3x1xi32>
    %89 = stablehlo.compare GE, %87, %88, SIGNED : (tensor<3x1xi32>, tensor<3x1xi32>) -> tensor<3x1xi1>
    %90 = stablehlo.broadcast_in_dim %c_32, dims = [1] : (tensor<1xi32>) -> tensor<1x1xi32>
    %91 = stablehlo.broadcast_in_dim %90, dims = [0, 1] : (tensor<1x1xi32>) -> tensor<3x1xi32>
    %92 = stablehlo.compare LE, %87, %91, SIGNED : (tensor<3x1xi32>, tensor<3x1xi32>) -> tensor<3x1xi1>
    %93 = stablehlo.and %89, %92 : tensor<3x1xi1>
    %c_34 = stablehlo.constant dense<true> : tensor<i1>
    %94 = stablehlo.reduce(%93 init: %c_34) applies stablehlo.and across dimensions = [1] : (tensor<3x1xi1>, tensor<i1>) -> tensor<3xi1>
    %95 = "stablehlo.gather"(%80, %87) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1, 16>}> : (tensor<8x16xf32>, tensor<3x1xi32>) -> tensor<3x16xf32>
    %96 = stablehlo.broadcast_in_dim %94, dims = [0] : (tensor<3xi1>) -> tensor<3x16xi1>
    %cst = stablehlo.constant dense<0x7FC00000> : tensor<f32>
    %97 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<3x16xf32>
    %98 = stablehlo.select %96, %95, %97 : tensor<3x16xi1>, tensor<3x16xf32>
    %99 = stablehlo.slice %arg3 [2:3] : (tensor<6xi64>) -> tensor<1xi64>
    %100 = stablehlo.reshape %99 : (tensor<1xi64>) -> tensor<i64>
    %101 = stablehlo.convert %100 : (tensor<i64>) -> tensor<f32>
    %102 = stablehlo.broadcast_in_dim %101, dims = [] : (tensor<f32>) -> tensor<3x16xf32>
    %103 = stablehlo.multiply %98, %102 : tensor<3x16xf32>
    %c_35 = stablehlo.constant dense<0> : tensor<i64>
    %104 = stablehlo.broadcast_in_dim %c_35, dims = [] : (tensor<i64>) -> tensor<3xi64>
    %105 = stablehlo.compare LT, %arg1, %104, SIGNED : (tensor<3xi64>, tensor<3xi64>) -> tensor<3xi1>
    %c_36 = stablehlo.constant dense<8> : tensor<i64>
    %106 = stablehlo.broadcast_in_dim %c_36, dims = [] : (tensor<i64>) -> tensor<3xi64>
    %107 = stablehlo.add %arg1, %106 : tensor<3xi64>
    %108 = stablehlo.select %105, %107, %arg1 : tensor<3xi1>, tensor<3xi64>
    %109 = stablehlo.convert %108 : (tensor<3xi64>) -> tensor<3xi32>
    %110 = stablehlo.broadcast_in_dim %109, dims = [0] : (tensor<3xi32>) -> tensor<3x1xi32>
    %111 = "stablehlo.scatter"(%80, %110, %103) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>, unique_indices = false}> ({
    ^bb0(%arg4: tensor<f32>, %arg5: tensor<f32>):
      stablehlo.return %arg5 : tensor<f32>
    }) : (tensor<8x16xf32>, tensor<3x1xi32>, tensor<3x16xf32>) -> tensor<8x16xf32>
    %112 = stablehlo.slice %arg3 [3:4] : (tensor<6xi64>) -> tensor<1xi64>
    %113 = stablehlo.reshape %112 : (tensor<1xi64>) -> tensor<i64>
    %114 = stablehlo.broadcast_in_dim %113, dims = [] : (tensor<i64>) -> tensor<3xi64>
    %115 = stablehlo.add %arg1, %114 : tensor<3xi64>
    %116 = stablehlo.slice %arg2 [1:2] : (tensor<2xf64>) -> tensor<1xf64>
    %117 = stablehlo.reshape %116 : (tensor<1xf64>) -> tensor<f64>
    %118 = stablehlo.convert %117 : (tensor<f64>) -> tensor<f32>
    %119 = stablehlo.broadcast_in_dim %118, dims = [] : (tensor<f32>) -> tensor<3xf32>
    %c_37 = stablehlo.constant dense<0> : tensor<i64>
    %120 = stablehlo.broadcast_in_dim %c_37, dims = [] : (tensor<i64>) -> tensor<3xi64>
    %121 = stablehlo.compare LT, %arg1, %120, SIGNED : (tensor<3xi64>, tensor<3xi64>) -> tensor<3xi1>
    %c_38 = stablehlo.constant dense<8> : tensor<i64>
    %122 = stablehlo.broadcast_in_dim %c_38, dims = [] : (tensor<i64>) -> tensor<3xi64>
    %123 = stablehlo.add %arg1, %122 : tensor<3xi64>
    %124 = stablehlo.select %121, %123, %arg1 : tensor<3xi1>, tensor<3xi64>
    %c_39 = stablehlo.constant dense<0> : tensor<i64>
    %125 = stablehlo.broadcast_in_dim %c_39, dims = [] : (tensor<i64>) -> tensor<3xi64>
    %126 = stablehlo.compare LT, %115, %125, SIGNED : (tensor<3xi64>, tensor<3xi64>) -> tensor<3xi1>
    %c_40 = stablehlo.constant dense<16> : tensor<i64>
    %127 = stablehlo.broadcast_in_dim %c_40, dims = [] : (tensor<i64>) -> tensor<3xi64>
    %128 = stablehlo.add %115, %127 : tensor<3xi64>
    %129 = stablehlo.select %126, %128, %115 : tensor<3xi1>, tensor<3xi64>
    %130 = stablehlo.convert %124 : (tensor<3xi64>) -> tensor<3xi32>
    %131 = stablehlo.convert %129 : (tensor<3xi64>) -> tensor<3xi32>
    %132 = stablehlo.broadcast_in_dim %130, dims = [0] : (tensor<3xi32>) -> tensor<3x1xi32>
    %133 = stablehlo.broadcast_in_dim %131, dims = [0] : (tensor<3xi32>) -> tensor<3x1xi32>
    %134 = stablehlo.concatenate %132, %133, dim = 1 : (tensor<3x1xi32>, tensor<3x1xi32>) -> tensor<3x2xi32>
    %135 = "stablehlo.scatter"(%111, %134, %119) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [0, 1], scatter_dims_to_operand_dims = [0, 1], index_vector_dim = 1>, unique_indices = false}> ({
    ^bb0(%arg4: tensor<f32>, %arg5: tensor<f32>):
      %173 = stablehlo.add %arg4, %arg5 : tensor<f32>
      stablehlo.return %173 : tensor<f32>
    }) : (tensor<8x16xf32>, tensor<3x2xi32>, tensor<3xf32>) -> tensor<8x16xf32>
    %136 = stablehlo.slice %arg3 [4:5] : (tensor<6xi64>) -> tensor<1xi64>
    %137 = stablehlo.reshape %136 : (tensor<1xi64>) -> tensor<i64>
    %138 = stablehlo.convert %137 : (tensor<i64>) -> tensor<f32>
    %139 = stablehlo.broadcast_in_dim %138, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %140 = stablehlo.compare GT, %135, %139, FLOAT : (tensor<8x16xf32>, tensor<8x16xf32>) -> tensor<8x16xi1>
    %141 = stablehlo.slice %arg3 [5:6] : (tensor<6xi64>) -> tensor<1xi64>
    %142 = stablehlo.reshape %141 : (tensor<1xi64>) -> tensor<i64>
    %143 = stablehlo.convert %142 : (tensor<i64>) -> tensor<f32>
    %144 = call @_where(%140, %143, %135) : (tensor<8x16xi1>, tensor<f32>, tensor<8x16xf32>) -> tensor<8x16xf32>
    %145 = stablehlo.reshape %144 : (tensor<8x16xf32>) -> tensor<4x2x16xf32>
    %146 = stablehlo.slice %145 [0:4, 0:1, 0:16] : (tensor<4x2x16xf32>) -> tensor<4x1x16xf32>
    %147 = stablehlo.reshape %146 : (tensor<4x1x16xf32>) -> tensor<4x16xf32>
    %148 = stablehlo.reshape %147 : (tensor<4x16xf32>) -> tensor<1x4x16xf32>
    %149 = stablehlo.exponential %148 : tensor<1x4x16xf32>
    %150 = stablehlo.reshape %149 : (tensor<1x4x16xf32>) -> tensor<4x16xf32>
    %151 = stablehlo.broadcast_in_dim %150, dims = [0, 2] : (tensor<4x16xf32>) -> tensor<4x1x16xf32>
    %c_41 = stablehlo.constant dense<0> : tensor<i64>
    %c_42 = stablehlo.constant dense<0> : tensor<i64>
    %c_43 = stablehlo.constant dense<0> : tensor<i64>
    %152 = stablehlo.dynamic_update_slice %145, %151, %c_41, %c_42, %c_43 : (tensor<4x2x16xf32>, tensor<4x1x16xf32>, tensor<i64>, tensor<i64>, tensor<i64>) -> tensor<4x2x16xf32>
    %153 = stablehlo.reshape %152 : (tensor<4x2x16xf32>) -> tensor<8x16xf32>
    %cst_44 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %154 = stablehlo.broadcast_in_dim %cst_44, dims = [] : (tensor<f32>) -> tensor<8x4xf32>
    %155 = stablehlo.reshape %153 : (tensor<8x16xf32>) -> tensor<128xf32>
    %156 = stablehlo.reshape %154 : (tensor<8x4xf32>) -> tensor<32xf32>
    %c_45 = stablehlo.constant dense<32> : tensor<i64>
    %157 = stablehlo.broadcast_in_dim %c_45, dims = [] : (tensor<i64>) -> tensor<32xi64>
    %158 = stablehlo.add %c_13, %157 : tensor<32xi64>
    %159 = stablehlo.select %c_14, %158, %c_13 : tensor<32xi1>, tensor<32xi64>
    %160 = stablehlo.convert %159 : (tensor<32xi64>) -> tensor<32xi32>
    %161 = stablehlo.broadcast_in_dim %160, dims = [0] : (tensor<32xi32>) -> tensor<32x1xi32>
    %162 = "stablehlo.gather"(%156, %161) <{dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1>}> : (tensor<32xf32>, tensor<32x1xi32>) -> tensor<32xf32>
    %c_46 = stablehlo.constant dense<128> : tensor<i64>
    %163 = stablehlo.broadcast_in_dim %c_46, dims = [] : (tensor<i64>) -> tensor<32xi64>
    %164 = stablehlo.add %c_15, %163 : tensor<32xi64>
    %165 = stablehlo.select %c_16, %164, %c_15 : tensor<32xi1>, tensor<32xi64>
    %166 = stablehlo.convert %165 : (tensor<32xi64>) -> tensor<32xi32>
    %167 = stablehlo.broadcast_in_dim %166, dims = [0] : (tensor<32xi32>) -> tensor<32x1xi32>
    %168 = "stablehlo.scatter"(%155, %167, %162) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>, unique_indices = false}> ({
    ^bb0(%arg4: tensor<f32>, %arg5: tensor<f32>):
      stablehlo.return %arg5 : tensor<f32>
    }) : (tensor<128xf32>, tensor<32x1xi32>, tensor<32xf32>) -> tensor<128xf32>
    %169 = stablehlo.reshape %168 : (tensor<128xf32>) -> tensor<8x16xf32>
    %170 = stablehlo.transpose %169, dims = [1, 0] : (tensor<8x16xf32>) -> tensor<16x8xf32>
    %171 = stablehlo.reshape %170 : (tensor<16x8xf32>) -> tensor<128xf32>
    %172 = stablehlo.transpose %169, dims = [1, 0] : (tensor<8x16xf32>) -> tensor<16x8xf32>
    return %169, %171, %172 : tensor<8x16xf32>, tensor<128xf32>, tensor<16x8xf32>
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

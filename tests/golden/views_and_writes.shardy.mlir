// torch 2.13.0, jax 0.10.2, transformers 5.23.0
module @jit_spmd attributes {mhlo.num_partitions = 8 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["rows"=8]> {stablehlo.mesh = {axes = [{name = "rows", size = 8 : i64}]}}
  func.func public @main(%arg0: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"rows"}, {}]>, tf.aliasing_output = 0 : i32},
    %arg1: tensor<3xi64> {sdy.sharding = #sdy.sharding<@mesh, [{}]>},
    %arg2: tensor<2xf64>,
    %arg3: tensor<6xi64>) -> (
    tensor<8x16xf32> {jax.result_info = "result[0]", sdy.sharding = #sdy.sharding<@mesh, [{"rows"}, {}]>},
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
    %46 = "stablehlo.scatter"(%28, %45, %34) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [0, 1], scatter_dims_to_operand_dims = [0, 1], index_vector_dim = 1>, unique_indices = false}> ({
    ^bb0(%arg4: tensor<f32>, %arg5: tensor<f32>):
      stablehlo.return %arg5 : tensor<f32>
    }) : (tensor<8x16xf32>, tensor<8x2xi32>, tensor<8xf32>) -> tensor<8x16xf32>
    %47 = stablehlo.reshape %46 : (tensor<8x16xf32>) -> tensor<128xf32>
    %c_26 = stablehlo.constant dense<128> : tensor<i64>
    %48 = stablehlo.broadcast_in_dim %c_26, dims = [] : (tensor<i64>) -> tensor<4x3xi64>
    %49 = stablehlo.add %c_5, %48 : tensor<4x3xi64>
    %50 = stablehlo.select %c_6, %49, %c_5 : tensor<4x3xi1>, tensor<4x3xi64>
    %51 = stablehlo.convert %50 : (tensor<4x3xi64>) -> tensor<4x3xi32>
    %52 = stablehlo.broadcast_in_dim %51, dims = [0, 1] : (tensor<4x3xi32>) -> tensor<4x3x1xi32>
    %53 = "stablehlo.gather"(%47, %52) <{dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 2>, indices_are_sorted = false, slice_sizes = array<i64: 1>}> : (tensor<128xf32>, tensor<4x3x1xi32>) -> tensor<4x3xf32>
    %54 = stablehlo.reshape %46 : (tensor<8x16xf32>) -> tensor<128xf32>
    %c_27 = stablehlo.constant dense<128> : tensor<i64>
    %55 = stablehlo.broadcast_in_dim %c_27, dims = [] : (tensor<i64>) -> tensor<3x4xi64>
    %56 = stablehlo.add %c_7, %55 : tensor<3x4xi64>
    %57 = stablehlo.select %c_8, %56, %c_7 : tensor<3x4xi1>, tensor<3x4xi64>
    %58 = stablehlo.convert %57 : (tensor<3x4xi64>) -> tensor<3x4xi32>
    %59 = stablehlo.broadcast_in_dim %58, dims = [0, 1] : (tensor<3x4xi32>) -> tensor<3x4x1xi32>
    %60 = "stablehlo.gather"(%54, %59) <{dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 2>, indices_are_sorted = false, slice_sizes = array<i64: 1>}> : (tensor<128xf32>, tensor<3x4x1xi32>) -> tensor<3x4xf32>
    %61 = stablehlo.transpose %60, dims = [1, 0] : (tensor<3x4xf32>) -> tensor<4x3xf32>
    %62 = stablehlo.subtract %53, %61 : tensor<4x3xf32>
    %63 = stablehlo.reshape %46 : (tensor<8x16xf32>) -> tensor<128xf32>
    %64 = stablehlo.reshape %62 : (tensor<4x3xf32>) -> tensor<12xf32>
    %c_28 = stablehlo.constant dense<12> : tensor<i64>
    %65 = stablehlo.broadcast_in_dim %c_28, dims = [] : (tensor<i64>) -> tensor<12xi64>
    %66 = stablehlo.add %c_9, %65 : tensor<12xi64>
    %67 = stablehlo.select %c_10, %66, %c_9 : tensor<12xi1>, tensor<12xi64>
    %68 = stablehlo.convert %67 : (tensor<12xi64>) -> tensor<12xi32>
    %69 = stablehlo.broadcast_in_dim %68, dims = [0] : (tensor<12xi32>) -> tensor<12x1xi32>
    %70 = "stablehlo.gather"(%64, %69) <{dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1>}> : (tensor<12xf32>, tensor<12x1xi32>) -> tensor<12xf32>
    %c_29 = stablehlo.constant dense<128> : tensor<i64>
    %71 = stablehlo.broadcast_in_dim %c_29, dims = [] : (tensor<i64>) -> tensor<12xi64>
    %72 = stablehlo.add %c_11, %71 : tensor<12xi64>
    %73 = stablehlo.select %c_12, %72, %c_11 : tensor<12xi1>, tensor<12xi64>
    %74 = stablehlo.convert %73 : (tensor<12xi64>) -> tensor<12xi32>
    %75 = stablehlo.broadcast_in_dim %74, dims = [0] : (tensor<12xi32>) -> tensor<12x1xi32>
    %76 = "stablehlo.scatter"(%63, %75, %70) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>, unique_indices = false}> ({
    ^bb0(%arg4: tensor<f32>, %arg5: tensor<f32>):
      stablehlo.return %arg5 : tensor<f32>
    }) : (tensor<128xf32>, tensor<12x1xi32>, tensor<12xf32>) -> tensor<128xf32>
    %77 = stablehlo.reshape %76 : (tensor<128xf32>) -> tensor<8x16xf32>
    %c_30 = stablehlo.constant dense<0> : tensor<i64>
    %78 = stablehlo.broadcast_in_dim %c_30, dims = [] : (tensor<i64>) -> tensor<3xi64>
    %79 = stablehlo.compare LT, %arg1, %78, SIGNED : (tensor<3xi64>, tensor<3xi64>) -> tensor<3xi1>
    %c_31 = stablehlo.constant dense<8> : tensor<i64>
    %80 = stablehlo.broadcast_in_dim %c_31, dims = [] : (tensor<i64>) -> tensor<3xi64>
    %81 = stablehlo.add %arg1, %80 : tensor<3xi64>
    %82 = stablehlo.select %79, %81, %arg1 : tensor<3xi1>, tensor<3xi64>
    %83 = stablehlo.convert %82 : (tensor<3xi64>) -> tensor<3xi32>
    %84 = stablehlo.broadcast_in_dim %83, dims = [0] : (tensor<3xi32>) -> tensor<3x1xi32>
    %c_32 = stablehlo.constant dense<7> : tensor<1xi32>
    %c_33 = stablehlo.constant dense<0> : tensor<i32>
    %85 = stablehlo.broadcast_in_dim %c_33, dims = [] : (tensor<i32>) -> tensor<3x1xi32>
    %86 = stablehlo.compare GE, %84, %85, SIGNED : (tensor<3x1xi32>, tensor<3x1xi32>) -> tensor<3x1xi1>
    %87 = stablehlo.broadcast_in_dim %c_32, dims = [1] : (tensor<1xi32>) -> tensor<1x1xi32>
    %88 = stablehlo.broadcast_in_dim %87, dims = [0, 1] : (tensor<1x1xi32>) -> tensor<3x1xi32>
    %89 = stablehlo.compare LE, %84, %88, SIGNED : (tensor<3x1xi32>, tensor<3x1xi32>) -> tensor<3x1xi1>
    %90 = stablehlo.and %86, %89 : tensor<3x1xi1>
    %c_34 = stablehlo.constant dense<true> : tensor<i1>
    %91 = stablehlo.reduce(%90 init: %c_34) applies stablehlo.and across dimensions = [1] : (tensor<3x1xi1>, tensor<i1>) -> tensor<3xi1>
    %92 = "stablehlo.gather"(%77, %84) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1, 16>}> : (tensor<8x16xf32>, tensor<3x1xi32>) -> tensor<3x16xf32>
    %93 = stablehlo.broadcast_in_dim %91, dims = [0] : (tensor<3xi1>) -> tensor<3x16xi1>
    %cst = stablehlo.constant dense<0x7FC00000> : tensor<f32>
    %94 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<3x16xf32>
    %95 = stablehlo.select %93, %92, %94 : tensor<3x16xi1>, tensor<3x16xf32>
    %96 = stablehlo.slice %arg3 [2:3] : (tensor<6xi64>) -> tensor<1xi64>
    %97 = stablehlo.reshape %96 : (tensor<1xi64>) -> tensor<i64>
    %98 = stablehlo.convert %97 : (tensor<i64>) -> tensor<f32>
    %99 = stablehlo.broadcast_in_dim %98, dims = [] : (tensor<f32>) -> tensor<3x16xf32>
    %100 = stablehlo.multiply %95, %99 : tensor<3x16xf32>
    %c_35 = stablehlo.constant dense<0> : tensor<i64>
    %101 = stablehlo.broadcast_in_dim %c_35, dims = [] : (tensor<i64>) -> tensor<3xi64>
    %102 = stablehlo.compare LT, %arg1, %101, SIGNED : (tensor<3xi64>, tensor<3xi64>) -> tensor<3xi1>
    %c_36 = stablehlo.constant dense<8> : tensor<i64>
    %103 = stablehlo.broadcast_in_dim %c_36, dims = [] : (tensor<i64>) -> tensor<3xi64>
    %104 = stablehlo.add %arg1, %103 : tensor<3xi64>
    %105 = stablehlo.select %102, %104, %arg1 : tensor<3xi1>, tensor<3xi64>
    %106 = stablehlo.convert %105 : (tensor<3xi64>) -> tensor<3xi32>
    %107 = stablehlo.broadcast_in_dim %106, dims = [0] : (tensor<3xi32>) -> tensor<3x1xi32>
    %108 = "stablehlo.scatter"(%77, %107, %100) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>, unique_indices = false}> ({
    ^bb0(%arg4: tensor<f32>, %arg5: tensor<f32>):
      stablehlo.return %arg5 : tensor<f32>
    }) : (tensor<8x16xf32>, tensor<3x1xi32>, tensor<3x16xf32>) -> tensor<8x16xf32>
    %109 = stablehlo.slice %arg3 [3:4] : (tensor<6xi64>) -> tensor<1xi64>
    %110 = stablehlo.reshape %109 : (tensor<1xi64>) -> tensor<i64>
    %111 = stablehlo.broadcast_in_dim %110, dims = [] : (tensor<i64>) -> tensor<3xi64>
    %112 = stablehlo.add %arg1, %111 : tensor<3xi64>
    %113 = stablehlo.slice %arg2 [1:2] : (tensor<2xf64>) -> tensor<1xf64>
    %114 = stablehlo.reshape %113 : (tensor<1xf64>) -> tensor<f64>
    %115 = stablehlo.convert %114 : (tensor<f64>) -> tensor<f32>
    %116 = stablehlo.broadcast_in_dim %115, dims = [] : (tensor<f32>) -> tensor<3xf32>
    %c_37 = stablehlo.constant dense<0> : tensor<i64>
    %117 = stablehlo.broadcast_in_dim %c_37, dims = [] : (tensor<i64>) -> tensor<3xi64>
    %118 = stablehlo.compare LT, %arg1, %117, SIGNED : (tensor<3xi64>, tensor<3xi64>) -> tensor<3xi1>
    %c_38 = stablehlo.constant dense<8> : tensor<i64>
    %119 = stablehlo.broadcast_in_dim %c_38, dims = [] : (tensor<i64>) -> tensor<3xi64>
    %120 = stablehlo.add %arg1, %119 : tensor<3xi64>
    %121 = stablehlo.select %118, %120, %arg1 : tensor<3xi1>, tensor<3xi64>
    %c_39 = stablehlo.constant dense<0> : tensor<i64>
    %122 = stablehlo.broadcast_in_dim %c_39, dims = [] : (tensor<i64>) -> tensor<3xi64>
    %123 = stablehlo.compare LT, %112, %122, SIGNED : (tensor<3xi64>, tensor<3xi64>) -> tensor<3xi1>
    %c_40 = stablehlo.constant dense<16> : tensor<i64>
    %124 = stablehlo.broadcast_in_dim %c_40, dims = [] : (tensor<i64>) -> tensor<3xi64>
    %125 = stablehlo.add %112, %124 : tensor<3xi64>
    %126 = stablehlo.select %123, %125, %112 : tensor<3xi1>, tensor<3xi64>
    %127 = stablehlo.convert %121 : (tensor<3xi64>) -> tensor<3xi32>
    %128 = stablehlo.convert %126 : (tensor<3xi64>) -> tensor<3xi32>
    %129 = stablehlo.broadcast_in_dim %127, dims = [0] : (tensor<3xi32>) -> tensor<3x1xi32>
    %130 = stablehlo.broadcast_in_dim %128, dims = [0] : (tensor<3xi32>) -> tensor<3x1xi32>
    %131 = stablehlo.concatenate %129, %130, dim = 1 : (tensor<3x1xi32>, tensor<3x1xi32>) -> tensor<3x2xi32>
    %c_41 = stablehlo.constant dense<16> : tensor<i64>
    %132 = stablehlo.convert %c_41 : (tensor<i64>) -> tensor<i32>
    %133 = stablehlo.pad %131, %132, low = [0, 0], high = [5, 0], interior = [0, 0] : (tensor<3x2xi32>, tensor<i32>) -> tensor<8x2xi32>
    %c_42 = stablehlo.constant dense<0> : tensor<i64>
    %134 = stablehlo.convert %c_42 : (tensor<i64>) -> tensor<f32>
    %135 = stablehlo.pad %116, %134, low = [0], high = [5], interior = [0] : (tensor<3xf32>, tensor<f32>) -> tensor<8xf32>
    %136 = "stablehlo.scatter"(%108, %133, %135) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [0, 1], scatter_dims_to_operand_dims = [0, 1], index_vector_dim = 1>, unique_indices = false}> ({
    ^bb0(%arg4: tensor<f32>, %arg5: tensor<f32>):
      %174 = stablehlo.add %arg4, %arg5 : tensor<f32>
      stablehlo.return %174 : tensor<f32>
    }) : (tensor<8x16xf32>, tensor<8x2xi32>, tensor<8xf32>) -> tensor<8x16xf32>
    %137 = stablehlo.slice %arg3 [4:5] : (tensor<6xi64>) -> tensor<1xi64>
    %138 = stablehlo.reshape %137 : (tensor<1xi64>) -> tensor<i64>
    %139 = stablehlo.convert %138 : (tensor<i64>) -> tensor<f32>
    %140 = stablehlo.broadcast_in_dim %139, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %141 = stablehlo.compare GT, %136, %140, FLOAT : (tensor<8x16xf32>, tensor<8x16xf32>) -> tensor<8x16xi1>
    %142 = stablehlo.slice %arg3 [5:6] : (tensor<6xi64>) -> tensor<1xi64>
    %143 = stablehlo.reshape %142 : (tensor<1xi64>) -> tensor<i64>
    %144 = stablehlo.convert %143 : (tensor<i64>) -> tensor<f32>
    %145 = call @_where(%141, %144, %136) : (tensor<8x16xi1>, tensor<f32>, tensor<8x16xf32>) -> tensor<8x16xf32>
    %146 = stablehlo.reshape %145 : (tensor<8x16xf32>) -> tensor<4x2x16xf32>
    %147 = stablehlo.slice %146 [0:4, 0:1, 0:16] : (tensor<4x2x16xf32>) -> tensor<4x1x16xf32>
    %148 = stablehlo.reshape %147 : (tensor<4x1x16xf32>) -> tensor<4x16xf32>
    %149 = stablehlo.reshape %148 : (tensor<4x16xf32>) -> tensor<1x4x16xf32>
    %150 = stablehlo.exponential %149 : tensor<1x4x16xf32>
    %151 = stablehlo.reshape %150 : (tensor<1x4x16xf32>) -> tensor<4x16xf32>
    %152 = stablehlo.broadcast_in_dim %151, dims = [0, 2] : (tensor<4x16xf32>) -> tensor<4x1x16xf32>
    %c_43 = stablehlo.constant dense<0> : tensor<i64>
    %c_44 = stablehlo.constant dense<0> : tensor<i64>
    %c_45 = stablehlo.constant dense<0> : tensor<i64>
    %153 = stablehlo.dynamic_update_slice %146, %152, %c_43, %c_44, %c_45 : (tensor<4x2x16xf32>, tensor<4x1x16xf32>, tensor<i64>, tensor<i64>, tensor<i64>) -> tensor<4x2x16xf32>
    %154 = stablehlo.reshape %153 : (tensor<4x2x16xf32>) -> tensor<8x16xf32>
    %cst_46 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %155 = stablehlo.broadcast_in_dim %cst_46, dims = [] : (tensor<f32>) -> tensor<8x4xf32>
    %156 = stablehlo.reshape %154 : (tensor<8x16xf32>) -> tensor<128xf32>
    %157 = stablehlo.reshape %155 : (tensor<8x4xf32>) -> tensor<32xf32>
    %c_47 = stablehlo.constant dense<32> : tensor<i64>
    %158 = stablehlo.broadcast_in_dim %c_47, dims = [] : (tensor<i64>) -> tensor<32xi64>
    %159 = stablehlo.add %c_13, %158 : tensor<32xi64>
    %160 = stablehlo.select %c_14, %159, %c_13 : tensor<32xi1>, tensor<32xi64>
    %161 = stablehlo.convert %160 : (tensor<32xi64>) -> tensor<32xi32>
    %162 = stablehlo.broadcast_in_dim %161, dims = [0] : (tensor<32xi32>) -> tensor<32x1xi32>
    %163 = "stablehlo.gather"(%157, %162) <{dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1>}> : (tensor<32xf32>, tensor<32x1xi32>) -> tensor<32xf32>
    %c_48 = stablehlo.constant dense<128> : tensor<i64>
    %164 = stablehlo.broadcast_in_dim %c_48, dims = [] : (tensor<i64>) -> tensor<32xi64>
    %165 = stablehlo.add %c_15, %164 : tensor<32xi64>
    %166 = stablehlo.select %c_16, %165, %c_15 : tensor<32xi1>, tensor<32xi64>
    %167 = stablehlo.convert %166 : (tensor<32xi64>) -> tensor<32xi32>
    %168 = stablehlo.broadcast_in_dim %167, dims = [0] : (tensor<32xi32>) -> tensor<32x1xi32>
    %169 = "stablehlo.scatter"(%156, %168, %163) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>, unique_indices = false}> ({
    ^bb0(%arg4: tensor<f32>, %arg5: tensor<f32>):
      stablehlo.return %arg5 : tensor<f32>
    }) : (tensor<128xf32>, tensor<32x1xi32>, tensor<32xf32>) -> tensor<128xf32>
    %170 = stablehlo.reshape %169 : (tensor<128xf32>) -> tensor<8x16xf32>
    %171 = stablehlo.transpose %170, dims = [1, 0] : (tensor<8x16xf32>) -> tensor<16x8xf32>
    %172 = stablehlo.reshape %171 : (tensor<16x8xf32>) -> tensor<128xf32>
    %173 = stablehlo.transpose %170, dims = [1, 0] : (tensor<8x16xf32>) -> tensor<16x8xf32>
    return %170, %172, %173 : tensor<8x16xf32>, tensor<128xf32>, tensor<16x8xf32>
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

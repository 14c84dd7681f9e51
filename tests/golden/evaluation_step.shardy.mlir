// torch 2.13.0, jax 0.10.2, transformers 5.23.0
module @jit_spmd attributes {mhlo.num_partitions = 8 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["fsdp"=8]> {stablehlo.mesh = {axes = [{name = "fsdp", size = 8 : i64}]}}
  func.func public @main(%arg0: tensor<32x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}, {}]>},
    %arg1: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"fsdp"}]>},
    %arg2: tensor<16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}]>},
    %arg3: tensor<16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}]>},
    %arg4: tensor<32x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}, {}]>},
    %arg5: tensor<8x8xi64> {sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}, {}]>},
    %arg6: tensor<16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}]>},
    %arg7: tensor<16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}]>},
    %arg8: tensor<48x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}, {}]>},
    %arg9: tensor<48xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}]>},
    %arg10: tensor<16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}, {}]>},
    %arg11: tensor<16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}]>},
    %arg12: tensor<16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}]>},
    %arg13: tensor<16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}]>},
    %arg14: tensor<64x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}, {}]>},
    %arg15: tensor<64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}]>},
    %arg16: tensor<16x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"fsdp"}]>},
    %arg17: tensor<16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}]>},
    %arg18: tensor<8x8xi64> {sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}, {}]>},
    %arg19: tensor<0xf64>,
    %arg20: tensor<2xi64>) -> (
    tensor<f32> {jax.result_info = "result[0]"}) {
    %0 = stablehlo.iota dim = 0 : tensor<8xi64>
    %c = stablehlo.constant dense<1> : tensor<i64>
    %1 = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<i64>) -> tensor<8xi64>
    %2 = stablehlo.multiply %0, %1 : tensor<8xi64>
    %c_0 = stablehlo.constant dense<0> : tensor<i64>
    %3 = stablehlo.broadcast_in_dim %c_0, dims = [] : (tensor<i64>) -> tensor<8xi64>
    %4 = stablehlo.add %3, %2 : tensor<8xi64>
    %5 = stablehlo.reshape %arg0 : (tensor<32x16xf32>) -> tensor<8x4x16xf32>
    %6 = stablehlo.reshape %5 : (tensor<8x4x16xf32>) -> tensor<8x64xf32>
    %7 = sdy.sharding_constraint %6 <@mesh, [{"fsdp"}, {}]> : tensor<8x64xf32>
    %8 = stablehlo.transpose %arg1, dims = [1, 0] : (tensor<8x16xf32>) -> tensor<16x8xf32>
    %9 = stablehlo.reshape %8 : (tensor<16x8xf32>) -> tensor<8x2x8xf32>
    %10 = stablehlo.reshape %9 : (tensor<8x2x8xf32>) -> tensor<8x16xf32>
    %11 = sdy.sharding_constraint %10 <@mesh, [{"fsdp"}, {}]> : tensor<8x16xf32>
    %12 = stablehlo.reshape %arg2 : (tensor<16xf32>) -> tensor<16x1xf32>
    %13 = stablehlo.reshape %12 : (tensor<16x1xf32>) -> tensor<8x2x1xf32>
    %14 = stablehlo.reshape %13 : (tensor<8x2x1xf32>) -> tensor<8x2xf32>
    %15 = sdy.sharding_constraint %14 <@mesh, [{"fsdp"}, {}]> : tensor<8x2xf32>
    %16 = stablehlo.reshape %arg3 : (tensor<16xf32>) -> tensor<16x1xf32>
    %17 = stablehlo.reshape %16 : (tensor<16x1xf32>) -> tensor<8x2x1xf32>
    %18 = stablehlo.reshape %17 : (tensor<8x2x1xf32>) -> tensor<8x2xf32>
    %19 = sdy.sharding_constraint %18 <@mesh, [{"fsdp"}, {}]> : tensor<8x2xf32>
    %20 = stablehlo.reshape %arg4 : (tensor<32x16xf32>) -> tensor<8x4x16xf32>
    %21 = stablehlo.reshape %20 : (tensor<8x4x16xf32>) -> tensor<8x64xf32>
    %22 = sdy.sharding_constraint %21 <@mesh, [{"fsdp"}, {}]> : tensor<8x64xf32>
    %23 = stablehlo.concatenate %7, %11, %15, %19, %22, dim = 1 : (tensor<8x64xf32>, tensor<8x16xf32>, tensor<8x2xf32>, tensor<8x2xf32>, tensor<8x64xf32>) -> tensor<8x148xf32>
    %24 = sdy.sharding_constraint %23 <@mesh, [{"fsdp"}, {}]> : tensor<8x148xf32>
    %25 = sdy.sharding_constraint %24 <@mesh, [{}, {}]> : tensor<8x148xf32>
    %26 = stablehlo.slice %25 [0:8, 0:64] : (tensor<8x148xf32>) -> tensor<8x64xf32>
    %27 = stablehlo.reshape %26 : (tensor<8x64xf32>) -> tensor<32x16xf32>
    %28 = stablehlo.slice %25 [0:8, 64:80] : (tensor<8x148xf32>) -> tensor<8x16xf32>
    %29 = stablehlo.reshape %28 : (tensor<8x16xf32>) -> tensor<16x8xf32>
    %30 = stablehlo.transpose %29, dims = [1, 0] : (tensor<16x8xf32>) -> tensor<8x16xf32>
    %31 = stablehlo.slice %25 [0:8, 80:82] : (tensor<8x148xf32>) -> tensor<8x2xf32>
    %32 = stablehlo.reshape %31 : (tensor<8x2xf32>) -> tensor<16xf32>
    %33 = stablehlo.slice %25 [0:8, 82:84] : (tensor<8x148xf32>) -> tensor<8x2xf32>
    %34 = stablehlo.reshape %33 : (tensor<8x2xf32>) -> tensor<16xf32>
    %35 = stablehlo.slice %25 [0:8, 84:148] : (tensor<8x148xf32>) -> tensor<8x64xf32>
    %36 = stablehlo.reshape %35 : (tensor<8x64xf32>) -> tensor<32x16xf32>
    %37 = stablehlo.convert %arg5 : (tensor<8x8xi64>) -> tensor<8x8xi32>
    %38 = stablehlo.broadcast_in_dim %37, dims = [0, 1] : (tensor<8x8xi32>) -> tensor<8x8x1xi32>
    %c_1 = stablehlo.constant dense<31> : tensor<1xi32>
    %c_2 = stablehlo.constant dense<0> : tensor<i32>
    %39 = stablehlo.broadcast_in_dim %c_2, dims = [] : (tensor<i32>) -> tensor<8x8x1xi32>
    %40 = stablehlo.compare GE, %38, %39, SIGNED : (tensor<8x8x1xi32>, tensor<8x8x1xi32>) -> tensor<8x8x1xi1>
    %41 = stablehlo.broadcast_in_dim %c_1, dims = [2] : (tensor<1xi32>) -> tensor<1x1x1xi32>
    %42 = stablehlo.broadcast_in_dim %41, dims = [0, 1, 2] : (tensor<1x1x1xi32>) -> tensor<8x8x1xi32>
    %43 = stablehlo.compare LE, %38, %42, SIGNED : (tensor<8x8x1xi32>, tensor<8x8x1xi32>) -> tensor<8x8x1xi1>
    %44 = stablehlo.and %40, %43 : tensor<8x8x1xi1>
    %c_3 = stablehlo.constant dense<true> : tensor<i1>
    %45 = stablehlo.reduce(%44 init: %c_3) applies stablehlo.and across dimensions = [2] : (tensor<8x8x1xi1>, tensor<i1>) -> tensor<8x8xi1>
    %46 = "stablehlo.gather"(%27, %38) <{dimension_numbers = #stablehlo.gather<offset_dims = [2], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 2>, indices_are_sorted = false, slice_sizes = array<i64: 1, 16>}> : (tensor<32x16xf32>, tensor<8x8x1xi32>) -> tensor<8x8x16xf32>
    %47 = stablehlo.broadcast_in_dim %45, dims = [0, 1] : (tensor<8x8xi1>) -> tensor<8x8x16xi1>
    %cst = stablehlo.constant dense<0x7FC00000> : tensor<f32>
    %48 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<8x8x16xf32>
    %49 = stablehlo.select %47, %46, %48 : tensor<8x8x16xi1>, tensor<8x8x16xf32>
    %50 = stablehlo.convert %4 : (tensor<8xi64>) -> tensor<8xi32>
    %51 = stablehlo.broadcast_in_dim %50, dims = [0] : (tensor<8xi32>) -> tensor<8x1xi32>
    %c_4 = stablehlo.constant dense<7> : tensor<1xi32>
    %c_5 = stablehlo.constant dense<0> : tensor<i32>
    %52 = stablehlo.broadcast_in_dim %c_5, dims = [] : (tensor<i32>) -> tensor<8x1xi32>
    %53 = stablehlo.compare GE, %51, %52, SIGNED : (tensor<8x1xi32>, tensor<8x1xi32>) -> tensor<8x1xi1>
    %54 = stablehlo.broadcast_in_dim %c_4, dims = [1] : (tensor<1xi32>) -> tensor<1x1xi32>
    %55 = stablehlo.broadcast_in_dim %54, dims = [0, 1] : (tensor<1x1xi32>) -> tensor<8x1xi32>
    %56 = stablehlo.compare LE, %51, %55, SIGNED : (tensor<8x1xi32>, tensor<8x1xi32>) -> tensor<8x1xi1>
    %57 = stablehlo.and %53, %56 : tensor<8x1xi1>
    %c_6 = stablehlo.constant dense<true> : tensor<i1>
    %58 = stablehlo.reduce(%57 init: %c_6) applies stablehlo.and across dimensions = [1] : (tensor<8x1xi1>, tensor<i1>) -> tensor<8xi1>
    %59 = "stablehlo.gather"(%30, %51) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1, 16>}> : (tensor<8x16xf32>, tensor<8x1xi32>) -> tensor<8x16xf32>
    %60 = stablehlo.broadcast_in_dim %58, dims = [0] : (tensor<8xi1>) -> tensor<8x16xi1>
    %cst_7 = stablehlo.constant dense<0x7FC00000> : tensor<f32>
    %61 = stablehlo.broadcast_in_dim %cst_7, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %62 = stablehlo.select %60, %59, %61 : tensor<8x16xi1>, tensor<8x16xf32>
    %63 = stablehlo.broadcast_in_dim %62, dims = [1, 2] : (tensor<8x16xf32>) -> tensor<1x8x16xf32>
    %64 = stablehlo.broadcast_in_dim %63, dims = [0, 1, 2] : (tensor<1x8x16xf32>) -> tensor<8x8x16xf32>
    %65 = stablehlo.add %49, %64 : tensor<8x8x16xf32>
    %66:13 = stablehlo.optimization_barrier %arg6, %arg7, %arg8, %arg9, %arg10, %arg11, %arg12, %arg13, %arg14, %arg15, %arg16, %arg17, %65 : tensor<16xf32>, tensor<16xf32>, tensor<48x16xf32>, tensor<48xf32>, tensor<16x16xf32>, tensor<16xf32>, tensor<16xf32>, tensor<16xf32>, tensor<64x16xf32>, tensor<64xf32>, tensor<16x64xf32>, tensor<16xf32>, tensor<8x8x16xf32>
    %67 = sdy.sharding_constraint %66#0 <@mesh, [{"fsdp"}]> : tensor<16xf32>
    %68 = sdy.sharding_constraint %66#1 <@mesh, [{"fsdp"}]> : tensor<16xf32>
    %69 = sdy.sharding_constraint %66#2 <@mesh, [{"fsdp"}, {}]> : tensor<48x16xf32>
    %70 = sdy.sharding_constraint %66#3 <@mesh, [{"fsdp"}]> : tensor<48xf32>
    %71 = sdy.sharding_constraint %66#4 <@mesh, [{"fsdp"}, {}]> : tensor<16x16xf32>
    %72 = sdy.sharding_constraint %66#5 <@mesh, [{"fsdp"}]> : tensor<16xf32>
    %73 = sdy.sharding_constraint %66#6 <@mesh, [{"fsdp"}]> : tensor<16xf32>
    %74 = sdy.sharding_constraint %66#7 <@mesh, [{"fsdp"}]> : tensor<16xf32>
    %75 = sdy.sharding_constraint %66#8 <@mesh, [{"fsdp"}, {}]> : tensor<64x16xf32>
    %76 = sdy.sharding_constraint %66#9 <@mesh, [{"fsdp"}]> : tensor<64xf32>
    %77 = sdy.sharding_constraint %66#10 <@mesh, [{}, {"fsdp"}]> : tensor<16x64xf32>
    %78 = sdy.sharding_constraint %66#11 <@mesh, [{"fsdp"}]> : tensor<16xf32>
    %79 = stablehlo.reshape %67 : (tensor<16xf32>) -> tensor<16x1xf32>
    %80 = stablehlo.reshape %79 : (tensor<16x1xf32>) -> tensor<8x2x1xf32>
    %81 = stablehlo.reshape %80 : (tensor<8x2x1xf32>) -> tensor<8x2xf32>
    %82 = sdy.sharding_constraint %81 <@mesh, [{"fsdp"}, {}]> : tensor<8x2xf32>
    %83 = stablehlo.reshape %68 : (tensor<16xf32>) -> tensor<16x1xf32>
    %84 = stablehlo.reshape %83 : (tensor<16x1xf32>) -> tensor<8x2x1xf32>
    %85 = stablehlo.reshape %84 : (tensor<8x2x1xf32>) -> tensor<8x2xf32>
    %86 = sdy.sharding_constraint %85 <@mesh, [{"fsdp"}, {}]> : tensor<8x2xf32>
    %87 = stablehlo.reshape %69 : (tensor<48x16xf32>) -> tensor<8x6x16xf32>
    %88 = stablehlo.reshape %87 : (tensor<8x6x16xf32>) -> tensor<8x96xf32>
    %89 = sdy.sharding_constraint %88 <@mesh, [{"fsdp"}, {}]> : tensor<8x96xf32>
    %90 = stablehlo.reshape %70 : (tensor<48xf32>) -> tensor<48x1xf32>
    %91 = stablehlo.reshape %90 : (tensor<48x1xf32>) -> tensor<8x6x1xf32>
    %92 = stablehlo.reshape %91 : (tensor<8x6x1xf32>) -> tensor<8x6xf32>
    %93 = sdy.sharding_constraint %92 <@mesh, [{"fsdp"}, {}]> : tensor<8x6xf32>
    %94 = stablehlo.reshape %71 : (tensor<16x16xf32>) -> tensor<8x2x16xf32>
    %95 = stablehlo.reshape %94 : (tensor<8x2x16xf32>) -> tensor<8x32xf32>
    %96 = sdy.sharding_constraint %95 <@mesh, [{"fsdp"}, {}]> : tensor<8x32xf32>
    %97 = stablehlo.reshape %72 : (tensor<16xf32>) -> tensor<16x1xf32>
    %98 = stablehlo.reshape %97 : (tensor<16x1xf32>) -> tensor<8x2x1xf32>
    %99 = stablehlo.reshape %98 : (tensor<8x2x1xf32>) -> tensor<8x2xf32>
    %100 = sdy.sharding_constraint %99 <@mesh, [{"fsdp"}, {}]> : tensor<8x2xf32>
    %101 = stablehlo.reshape %73 : (tensor<16xf32>) -> tensor<16x1xf32>
    %102 = stablehlo.reshape %101 : (tensor<16x1xf32>) -> tensor<8x2x1xf32>
    %103 = stablehlo.reshape %102 : (tensor<8x2x1xf32>) -> tensor<8x2xf32>
    %104 = sdy.sharding_constraint %103 <@mesh, [{"fsdp"}, {}]> : tensor<8x2xf32>
    %105 = stablehlo.reshape %74 : (tensor<16xf32>) -> tensor<16x1xf32>
    %106 = stablehlo.reshape %105 : (tensor<16x1xf32>) -> tensor<8x2x1xf32>
    %107 = stablehlo.reshape %106 : (tensor<8x2x1xf32>) -> tensor<8x2xf32>
    %108 = sdy.sharding_constraint %107 <@mesh, [{"fsdp"}, {}]> : tensor<8x2xf32>
    %109 = stablehlo.reshape %75 : (tensor<64x16xf32>) -> tensor<8x8x16xf32>
    %110 = stablehlo.reshape %109 : (tensor<8x8x16xf32>) -> tensor<8x128xf32>
    %111 = sdy.sharding_constraint %110 <@mesh, [{"fsdp"}, {}]> : tensor<8x128xf32>
    %112 = stablehlo.reshape %76 : (tensor<64xf32>) -> tensor<64x1xf32>
    %113 = stablehlo.reshape %112 : (tensor<64x1xf32>) -> tensor<8x8x1xf32>
    %114 = stablehlo.reshape %113 : (tensor<8x8x1xf32>) -> tensor<8x8xf32>
    %115 = sdy.sharding_constraint %114 <@mesh, [{"fsdp"}, {}]> : tensor<8x8xf32>
    %116 = stablehlo.transpose %77, dims = [1, 0] : (tensor<16x64xf32>) -> tensor<64x16xf32>
    %117 = stablehlo.reshape %116 : (tensor<64x16xf32>) -> tensor<8x8x16xf32>
    %118 = stablehlo.reshape %117 : (tensor<8x8x16xf32>) -> tensor<8x128xf32>
    %119 = sdy.sharding_constraint %118 <@mesh, [{"fsdp"}, {}]> : tensor<8x128xf32>
    %120 = stablehlo.reshape %78 : (tensor<16xf32>) -> tensor<16x1xf32>
    %121 = stablehlo.reshape %120 : (tensor<16x1xf32>) -> tensor<8x2x1xf32>
    %122 = stablehlo.reshape %121 : (tensor<8x2x1xf32>) -> tensor<8x2xf32>
    %123 = sdy.sharding_constraint %122 <@mesh, [{"fsdp"}, {}]> : tensor<8x2xf32>
    %124 = stablehlo.concatenate %82, %86, %89, %93, %96, %100, %104, %108, %111, %115, %119, %123, dim = 1 : (tensor<8x2xf32>, tensor<8x2xf32>, tensor<8x96xf32>, tensor<8x6xf32>, tensor<8x32xf32>, tensor<8x2xf32>, tensor<8x2xf32>, tensor<8x2xf32>, tensor<8x128xf32>, tensor<8x8xf32>, tensor<8x128xf32>, tensor<8x2xf32>) -> tensor<8x410xf32>
    %125 = sdy.sharding_constraint %124 <@mesh, [{"fsdp"}, {}]> : tensor<8x410xf32>
    %126 = sdy.sharding_constraint %125 <@mesh, [{}, {}]> : tensor<8x410xf32>
    %127 = stablehlo.slice %126 [0:8, 0:2] : (tensor<8x410xf32>) -> tensor<8x2xf32>
    %128 = stablehlo.reshape %127 : (tensor<8x2xf32>) -> tensor<16xf32>
    %129 = stablehlo.slice %126 [0:8, 2:4] : (tensor<8x410xf32>) -> tensor<8x2xf32>
    %130 = stablehlo.reshape %129 : (tensor<8x2xf32>) -> tensor<16xf32>
    %131 = stablehlo.slice %126 [0:8, 4:100] : (tensor<8x410xf32>) -> tensor<8x96xf32>
    %132 = stablehlo.reshape %131 : (tensor<8x96xf32>) -> tensor<48x16xf32>
    %133 = stablehlo.slice %126 [0:8, 100:106] : (tensor<8x410xf32>) -> tensor<8x6xf32>
    %134 = stablehlo.reshape %133 : (tensor<8x6xf32>) -> tensor<48xf32>
    %135 = stablehlo.slice %126 [0:8, 106:138] : (tensor<8x410xf32>) -> tensor<8x32xf32>
    %136 = stablehlo.reshape %135 : (tensor<8x32xf32>) -> tensor<16x16xf32>
    %137 = stablehlo.slice %126 [0:8, 138:140] : (tensor<8x410xf32>) -> tensor<8x2xf32>
    %138 = stablehlo.reshape %137 : (tensor<8x2xf32>) -> tensor<16xf32>
    %139 = stablehlo.slice %126 [0:8, 140:142] : (tensor<8x410xf32>) -> tensor<8x2xf32>
    %140 = stablehlo.reshape %139 : (tensor<8x2xf32>) -> tensor<16xf32>
    %141 = stablehlo.slice %126 [0:8, 142:144] : (tensor<8x410xf32>) -> tensor<8x2xf32>
    %142 = stablehlo.reshape %141 : (tensor<8x2xf32>) -> tensor<16xf32>
    %143 = stablehlo.slice %126 [0:8, 144:272] : (tensor<8x410xf32>) -> tensor<8x128xf32>
    %144 = stablehlo.reshape %143 : (tensor<8x128xf32>) -> tensor<64x16xf32>
    %145 = stablehlo.slice %126 [0:8, 272:280] : (tensor<8x410xf32>) -> tensor<8x8xf32>
    %146 = stablehlo.reshape %145 : (tensor<8x8xf32>) -> tensor<64xf32>
    %147 = stablehlo.slice %126 [0:8, 280:408] : (tensor<8x410xf32>) -> tensor<8x128xf32>
    %148 = stablehlo.reshape %147 : (tensor<8x128xf32>) -> tensor<64x16xf32>
    %149 = stablehlo.transpose %148, dims = [1, 0] : (tensor<64x16xf32>) -> tensor<16x64xf32>
    %150 = stablehlo.slice %126 [0:8, 408:410] : (tensor<8x410xf32>) -> tensor<8x2xf32>
    %151 = stablehlo.reshape %150 : (tensor<8x2xf32>) -> tensor<16xf32>
    %cst_8 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %152 = stablehlo.reduce(%66#12 init: %cst_8) applies stablehlo.add across dimensions = [2] : (tensor<8x8x16xf32>, tensor<f32>) -> tensor<8x8xf32>
    %153 = stablehlo.broadcast_in_dim %152, dims = [0, 1] : (tensor<8x8xf32>) -> tensor<8x8x1xf32>
    %cst_9 = stablehlo.constant dense<1.600000e+01> : tensor<f32>
    %154 = stablehlo.broadcast_in_dim %cst_9, dims = [] : (tensor<f32>) -> tensor<8x8x1xf32>
    %155 = stablehlo.divide %153, %154 : tensor<8x8x1xf32>
    %156 = stablehlo.broadcast_in_dim %155, dims = [0, 1, 2] : (tensor<8x8x1xf32>) -> tensor<8x8x16xf32>
    %157 = stablehlo.subtract %66#12, %156 : tensor<8x8x16xf32>
    %158 = stablehlo.multiply %157, %157 : tensor<8x8x16xf32>
    %cst_10 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %159 = stablehlo.reduce(%158 init: %cst_10) applies stablehlo.add across dimensions = [2] : (tensor<8x8x16xf32>, tensor<f32>) -> tensor<8x8xf32>
    %160 = stablehlo.broadcast_in_dim %159, dims = [0, 1] : (tensor<8x8xf32>) -> tensor<8x8x1xf32>
    %cst_11 = stablehlo.constant dense<1.600000e+01> : tensor<f32>
    %161 = stablehlo.broadcast_in_dim %cst_11, dims = [] : (tensor<f32>) -> tensor<8x8x1xf32>
    %162 = stablehlo.divide %160, %161 : tensor<8x8x1xf32>
    %cst_12 = stablehlo.constant dense<9.99999974E-6> : tensor<f32>
    %163 = stablehlo.broadcast_in_dim %cst_12, dims = [] : (tensor<f32>) -> tensor<8x8x1xf32>
    %164 = stablehlo.add %162, %163 : tensor<8x8x1xf32>
    %165 = stablehlo.rsqrt %164 : tensor<8x8x1xf32>
    %166 = stablehlo.broadcast_in_dim %165, dims = [0, 1, 2] : (tensor<8x8x1xf32>) -> tensor<8x8x16xf32>
    %167 = stablehlo.multiply %157, %166 : tensor<8x8x16xf32>
    %168 = stablehlo.broadcast_in_dim %128, dims = [2] : (tensor<16xf32>) -> tensor<1x1x16xf32>
    %169 = stablehlo.broadcast_in_dim %168, dims = [0, 1, 2] : (tensor<1x1x16xf32>) -> tensor<8x8x16xf32>
    %170 = stablehlo.multiply %167, %169 : tensor<8x8x16xf32>
    %171 = stablehlo.broadcast_in_dim %130, dims = [2] : (tensor<16xf32>) -> tensor<1x1x16xf32>
    %172 = stablehlo.broadcast_in_dim %171, dims = [0, 1, 2] : (tensor<1x1x16xf32>) -> tensor<8x8x16xf32>
    %173 = stablehlo.add %170, %172 : tensor<8x8x16xf32>
    %174 = call @atleast_2d(%132) : (tensor<48x16xf32>) -> tensor<48x16xf32>
    %175 = stablehlo.transpose %174, dims = [1, 0] : (tensor<48x16xf32>) -> tensor<16x48xf32>
    %176 = stablehlo.dot_general %173, %175, contracting_dims = [2] x [0], precision = [HIGHEST, HIGHEST] : (tensor<8x8x16xf32>, tensor<16x48xf32>) -> tensor<8x8x48xf32>
    %177 = stablehlo.broadcast_in_dim %134, dims = [2] : (tensor<48xf32>) -> tensor<1x1x48xf32>
    %178 = stablehlo.broadcast_in_dim %177, dims = [0, 1, 2] : (tensor<1x1x48xf32>) -> tensor<8x8x48xf32>
    %179 = stablehlo.add %178, %176 : tensor<8x8x48xf32>
    %180 = stablehlo.reshape %179 : (tensor<8x8x48xf32>) -> tensor<8x8x3x2x8xf32>
    %181 = stablehlo.slice %180 [0:8, 0:8, 0:1, 0:2, 0:8] : (tensor<8x8x3x2x8xf32>) -> tensor<8x8x1x2x8xf32>
    %182 = stablehlo.reshape %181 : (tensor<8x8x1x2x8xf32>) -> tensor<8x8x2x8xf32>
    %183 = stablehlo.transpose %182, dims = [0, 2, 1, 3] : (tensor<8x8x2x8xf32>) -> tensor<8x2x8x8xf32>
    %184 = stablehlo.slice %180 [0:8, 0:8, 1:2, 0:2, 0:8] : (tensor<8x8x3x2x8xf32>) -> tensor<8x8x1x2x8xf32>
    %185 = stablehlo.reshape %184 : (tensor<8x8x1x2x8xf32>) -> tensor<8x8x2x8xf32>
    %186 = stablehlo.transpose %185, dims = [0, 2, 1, 3] : (tensor<8x8x2x8xf32>) -> tensor<8x2x8x8xf32>
    %187 = stablehlo.slice %180 [0:8, 0:8, 2:3, 0:2, 0:8] : (tensor<8x8x3x2x8xf32>) -> tensor<8x8x1x2x8xf32>
    %188 = stablehlo.reshape %187 : (tensor<8x8x1x2x8xf32>) -> tensor<8x8x2x8xf32>
    %189 = stablehlo.transpose %188, dims = [0, 2, 1, 3] : (tensor<8x8x2x8xf32>) -> tensor<8x2x8x8xf32>
    %190 = stablehlo.slice %arg20 [0:1] : (tensor<2xi64>) -> tensor<1xi64>
    %191 = stablehlo.reshape %190 : (tensor<1xi64>) -> tensor<i64>
    %192 = stablehlo.slice %arg20 [1:2] : (tensor<2xi64>) -> tensor<1xi64>
    %193 = stablehlo.reshape %192 : (tensor<1xi64>) -> tensor<i64>
    %194 = stablehlo.dot_general %183, %186, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [3], precision = [HIGHEST, HIGHEST] : (tensor<8x2x8x8xf32>, tensor<8x2x8x8xf32>) -> tensor<8x2x8x8xf32>
    %cst_13 = stablehlo.constant dense<0.353553385> : tensor<f32>
    %195 = stablehlo.broadcast_in_dim %cst_13, dims = [] : (tensor<f32>) -> tensor<8x2x8x8xf32>
    %196 = stablehlo.multiply %194, %195 : tensor<8x2x8x8xf32>
    %197 = stablehlo.iota dim = 0 : tensor<8x8xi32>
    %198 = stablehlo.iota dim = 1 : tensor<8x8xi32>
    %199 = stablehlo.compare LE, %198, %197, SIGNED : (tensor<8x8xi32>, tensor<8x8xi32>) -> tensor<8x8xi1>
    %cst_14 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %200 = call @_where(%199, %196, %cst_14) : (tensor<8x8xi1>, tensor<8x2x8x8xf32>, tensor<f32>) -> tensor<8x2x8x8xf32>
    %cst_15 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %201 = stablehlo.reduce(%200 init: %cst_15) applies stablehlo.maximum across dimensions = [3] : (tensor<8x2x8x8xf32>, tensor<f32>) -> tensor<8x2x8xf32>
    %202 = stablehlo.broadcast_in_dim %201, dims = [0, 1, 2] : (tensor<8x2x8xf32>) -> tensor<8x2x8x1xf32>
    %203 = stablehlo.broadcast_in_dim %202, dims = [0, 1, 2, 3] : (tensor<8x2x8x1xf32>) -> tensor<8x2x8x8xf32>
    %204 = stablehlo.subtract %200, %203 : tensor<8x2x8x8xf32>
    %205 = stablehlo.exponential %204 : tensor<8x2x8x8xf32>
    %cst_16 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %206 = stablehlo.reduce(%205 init: %cst_16) applies stablehlo.add across dimensions = [3] : (tensor<8x2x8x8xf32>, tensor<f32>) -> tensor<8x2x8xf32>
    %207 = stablehlo.broadcast_in_dim %206, dims = [0, 1, 2] : (tensor<8x2x8xf32>) -> tensor<8x2x8x1xf32>
    %208 = stablehlo.log %207 : tensor<8x2x8x1xf32>
    %209 = stablehlo.add %202, %208 : tensor<8x2x8x1xf32>
    %210 = stablehlo.reshape %209 : (tensor<8x2x8x1xf32>) -> tensor<8x2x8xf32>
    %211 = stablehlo.broadcast_in_dim %207, dims = [0, 1, 2, 3] : (tensor<8x2x8x1xf32>) -> tensor<8x2x8x8xf32>
    %212 = stablehlo.divide %205, %211 : tensor<8x2x8x8xf32>
    %213 = stablehlo.dot_general %212, %189, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [2], precision = [HIGHEST, HIGHEST] : (tensor<8x2x8x8xf32>, tensor<8x2x8x8xf32>) -> tensor<8x2x8x8xf32>
    %214 = stablehlo.broadcast_in_dim %191, dims = [] : (tensor<i64>) -> tensor<1xi64>
    %215 = stablehlo.broadcast_in_dim %193, dims = [] : (tensor<i64>) -> tensor<1xi64>
    %216 = stablehlo.concatenate %214, %215, dim = 0 : (tensor<1xi64>, tensor<1xi64>) -> tensor<2xi64>
    %217 = stablehlo.transpose %213, dims = [0, 2, 1, 3] : (tensor<8x2x8x8xf32>) -> tensor<8x8x2x8xf32>
    %218 = stablehlo.reshape %217 : (tensor<8x8x2x8xf32>) -> tensor<8x8x16xf32>
    %219 = call @atleast_2d_0(%136) : (tensor<16x16xf32>) -> tensor<16x16xf32>
    %220 = stablehlo.transpose %219, dims = [1, 0] : (tensor<16x16xf32>) -> tensor<16x16xf32>
    %221 = stablehlo.dot_general %218, %220, contracting_dims = [2] x [0], precision = [HIGHEST, HIGHEST] : (tensor<8x8x16xf32>, tensor<16x16xf32>) -> tensor<8x8x16xf32>
    %222 = stablehlo.broadcast_in_dim %138, dims = [2] : (tensor<16xf32>) -> tensor<1x1x16xf32>
    %223 = stablehlo.broadcast_in_dim %222, dims = [0, 1, 2] : (tensor<1x1x16xf32>) -> tensor<8x8x16xf32>
    %224 = stablehlo.add %223, %221 : tensor<8x8x16xf32>
    %225 = stablehlo.add %66#12, %224 : tensor<8x8x16xf32>
    %cst_17 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %226 = stablehlo.reduce(%225 init: %cst_17) applies stablehlo.add across dimensions = [2] : (tensor<8x8x16xf32>, tensor<f32>) -> tensor<8x8xf32>
    %227 = stablehlo.broadcast_in_dim %226, dims = [0, 1] : (tensor<8x8xf32>) -> tensor<8x8x1xf32>
    %cst_18 = stablehlo.constant dense<1.600000e+01> : tensor<f32>
    %228 = stablehlo.broadcast_in_dim %cst_18, dims = [] : (tensor<f32>) -> tensor<8x8x1xf32>
    %229 = stablehlo.divide %227, %228 : tensor<8x8x1xf32>
    %230 = stablehlo.broadcast_in_dim %229, dims = [0, 1, 2] : (tensor<8x8x1xf32>) -> tensor<8x8x16xf32>
    %231 = stablehlo.subtract %225, %230 : tensor<8x8x16xf32>
    %232 = stablehlo.multiply %231, %231 : tensor<8x8x16xf32>
    %cst_19 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %233 = stablehlo.reduce(%232 init: %cst_19) applies stablehlo.add across dimensions = [2] : (tensor<8x8x16xf32>, tensor<f32>) -> tensor<8x8xf32>
    %234 = stablehlo.broadcast_in_dim %233, dims = [0, 1] : (tensor<8x8xf32>) -> tensor<8x8x1xf32>
    %cst_20 = stablehlo.constant dense<1.600000e+01> : tensor<f32>
    %235 = stablehlo.broadcast_in_dim %cst_20, dims = [] : (tensor<f32>) -> tensor<8x8x1xf32>
    %236 = stablehlo.divide %234, %235 : tensor<8x8x1xf32>
    %cst_21 = stablehlo.constant dense<9.99999974E-6> : tensor<f32>
    %237 = stablehlo.broadcast_in_dim %cst_21, dims = [] : (tensor<f32>) -> tensor<8x8x1xf32>
    %238 = stablehlo.add %236, %237 : tensor<8x8x1xf32>
    %239 = stablehlo.rsqrt %238 : tensor<8x8x1xf32>
    %240 = stablehlo.broadcast_in_dim %239, dims = [0, 1, 2] : (tensor<8x8x1xf32>) -> tensor<8x8x16xf32>
    %241 = stablehlo.multiply %231, %240 : tensor<8x8x16xf32>
    %242 = stablehlo.broadcast_in_dim %140, dims = [2] : (tensor<16xf32>) -> tensor<1x1x16xf32>
    %243 = stablehlo.broadcast_in_dim %242, dims = [0, 1, 2] : (tensor<1x1x16xf32>) -> tensor<8x8x16xf32>
    %244 = stablehlo.multiply %241, %243 : tensor<8x8x16xf32>
    %245 = stablehlo.broadcast_in_dim %142, dims = [2] : (tensor<16xf32>) -> tensor<1x1x16xf32>
    %246 = stablehlo.broadcast_in_dim %245, dims = [0, 1, 2] : (tensor<1x1x16xf32>) -> tensor<8x8x16xf32>
    %247 = stablehlo.add %244, %246 : tensor<8x8x16xf32>
    %248 = call @atleast_2d_1(%144) : (tensor<64x16xf32>) -> tensor<64x16xf32>
    %249 = stablehlo.transpose %248, dims = [1, 0] : (tensor<64x16xf32>) -> tensor<16x64xf32>
    %250 = stablehlo.dot_general %247, %249, contracting_dims = [2] x [0], precision = [HIGHEST, HIGHEST] : (tensor<8x8x16xf32>, tensor<16x64xf32>) -> tensor<8x8x64xf32>
    %251 = stablehlo.broadcast_in_dim %146, dims = [2] : (tensor<64xf32>) -> tensor<1x1x64xf32>
    %252 = stablehlo.broadcast_in_dim %251, dims = [0, 1, 2] : (tensor<1x1x64xf32>) -> tensor<8x8x64xf32>
    %253 = stablehlo.add %252, %250 : tensor<8x8x64xf32>
    %cst_22 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %254 = stablehlo.broadcast_in_dim %cst_22, dims = [] : (tensor<f32>) -> tensor<8x8x64xf32>
    %255 = stablehlo.multiply %254, %253 : tensor<8x8x64xf32>
    %256 = stablehlo.multiply %253, %253 : tensor<8x8x64xf32>
    %257 = stablehlo.multiply %256, %253 : tensor<8x8x64xf32>
    %cst_23 = stablehlo.constant dense<4.471500e-02> : tensor<f32>
    %258 = stablehlo.broadcast_in_dim %cst_23, dims = [] : (tensor<f32>) -> tensor<8x8x64xf32>
    %259 = stablehlo.multiply %258, %257 : tensor<8x8x64xf32>
    %260 = stablehlo.add %253, %259 : tensor<8x8x64xf32>
    %cst_24 = stablehlo.constant dense<0.797884583> : tensor<f32>
    %261 = stablehlo.broadcast_in_dim %cst_24, dims = [] : (tensor<f32>) -> tensor<8x8x64xf32>
    %262 = stablehlo.multiply %261, %260 : tensor<8x8x64xf32>
    %263 = stablehlo.tanh %262 : tensor<8x8x64xf32>
    %cst_25 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %264 = stablehlo.broadcast_in_dim %cst_25, dims = [] : (tensor<f32>) -> tensor<8x8x64xf32>
    %265 = stablehlo.add %264, %263 : tensor<8x8x64xf32>
    %266 = stablehlo.multiply %255, %265 : tensor<8x8x64xf32>
    %267 = call @atleast_2d_2(%149) : (tensor<16x64xf32>) -> tensor<16x64xf32>
    %268 = stablehlo.transpose %267, dims = [1, 0] : (tensor<16x64xf32>) -> tensor<64x16xf32>
    %269 = stablehlo.dot_general %266, %268, contracting_dims = [2] x [0], precision = [HIGHEST, HIGHEST] : (tensor<8x8x64xf32>, tensor<64x16xf32>) -> tensor<8x8x16xf32>
    %270 = stablehlo.broadcast_in_dim %151, dims = [2] : (tensor<16xf32>) -> tensor<1x1x16xf32>
    %271 = stablehlo.broadcast_in_dim %270, dims = [0, 1, 2] : (tensor<1x1x16xf32>) -> tensor<8x8x16xf32>
    %272 = stablehlo.add %271, %269 : tensor<8x8x16xf32>
    %273 = stablehlo.add %225, %272 : tensor<8x8x16xf32>
    %274 = sdy.sharding_constraint %273 <@mesh, [{"fsdp"}, {}, {}]> : tensor<8x8x16xf32>
    %cst_26 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %275 = stablehlo.reduce(%274 init: %cst_26) applies stablehlo.add across dimensions = [2] : (tensor<8x8x16xf32>, tensor<f32>) -> tensor<8x8xf32>
    %276 = stablehlo.broadcast_in_dim %275, dims = [0, 1] : (tensor<8x8xf32>) -> tensor<8x8x1xf32>
    %cst_27 = stablehlo.constant dense<1.600000e+01> : tensor<f32>
    %277 = stablehlo.broadcast_in_dim %cst_27, dims = [] : (tensor<f32>) -> tensor<8x8x1xf32>
    %278 = stablehlo.divide %276, %277 : tensor<8x8x1xf32>
    %279 = stablehlo.broadcast_in_dim %278, dims = [0, 1, 2] : (tensor<8x8x1xf32>) -> tensor<8x8x16xf32>
    %280 = stablehlo.subtract %274, %279 : tensor<8x8x16xf32>
    %281 = stablehlo.multiply %280, %280 : tensor<8x8x16xf32>
    %cst_28 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %282 = stablehlo.reduce(%281 init: %cst_28) applies stablehlo.add across dimensions = [2] : (tensor<8x8x16xf32>, tensor<f32>) -> tensor<8x8xf32>
    %283 = stablehlo.broadcast_in_dim %282, dims = [0, 1] : (tensor<8x8xf32>) -> tensor<8x8x1xf32>
    %cst_29 = stablehlo.constant dense<1.600000e+01> : tensor<f32>
    %284 = stablehlo.broadcast_in_dim %cst_29, dims = [] : (tensor<f32>) -> tensor<8x8x1xf32>
    %285 = stablehlo.divide %283, %284 : tensor<8x8x1xf32>
    %cst_30 = stablehlo.constant dense<9.99999974E-6> : tensor<f32>
    %286 = stablehlo.broadcast_in_dim %cst_30, dims = [] : (tensor<f32>) -> tensor<8x8x1xf32>
    %287 = stablehlo.add %285, %286 : tensor<8x8x1xf32>
    %288 = stablehlo.rsqrt %287 : tensor<8x8x1xf32>
    %289 = stablehlo.broadcast_in_dim %288, dims = [0, 1, 2] : (tensor<8x8x1xf32>) -> tensor<8x8x16xf32>
    %290 = stablehlo.multiply %280, %289 : tensor<8x8x16xf32>
    %291 = stablehlo.broadcast_in_dim %32, dims = [2] : (tensor<16xf32>) -> tensor<1x1x16xf32>
    %292 = stablehlo.broadcast_in_dim %291, dims = [0, 1, 2] : (tensor<1x1x16xf32>) -> tensor<8x8x16xf32>
    %293 = stablehlo.multiply %290, %292 : tensor<8x8x16xf32>
    %294 = stablehlo.broadcast_in_dim %34, dims = [2] : (tensor<16xf32>) -> tensor<1x1x16xf32>
    %295 = stablehlo.broadcast_in_dim %294, dims = [0, 1, 2] : (tensor<1x1x16xf32>) -> tensor<8x8x16xf32>
    %296 = stablehlo.add %293, %295 : tensor<8x8x16xf32>
    %297 = call @atleast_2d_3(%36) : (tensor<32x16xf32>) -> tensor<32x16xf32>
    %298 = stablehlo.transpose %297, dims = [1, 0] : (tensor<32x16xf32>) -> tensor<16x32xf32>
    %299 = stablehlo.dot_general %296, %298, contracting_dims = [2] x [0], precision = [HIGHEST, HIGHEST] : (tensor<8x8x16xf32>, tensor<16x32xf32>) -> tensor<8x8x32xf32>
    %300 = sdy.sharding_constraint %299 <@mesh, [{"fsdp"}, {}, {}]> : tensor<8x8x32xf32>
    %301 = stablehlo.reshape %300 : (tensor<8x8x32xf32>) -> tensor<64x32xf32>
    %302 = stablehlo.reshape %arg18 : (tensor<8x8xi64>) -> tensor<64xi64>
    %c_31 = stablehlo.constant dense<-100> : tensor<i64>
    %303 = stablehlo.broadcast_in_dim %c_31, dims = [] : (tensor<i64>) -> tensor<64xi64>
    %304 = stablehlo.compare NE, %302, %303, SIGNED : (tensor<64xi64>, tensor<64xi64>) -> tensor<64xi1>
    %c_32 = stablehlo.constant dense<0> : tensor<i64>
    %305 = call @_where_4(%304, %302, %c_32) : (tensor<64xi1>, tensor<64xi64>, tensor<i64>) -> tensor<64xi64>
    %cst_33 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %cst_34 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %306 = call @_where_5(%304, %cst_33, %cst_34) : (tensor<64xi1>, tensor<f32>, tensor<f32>) -> tensor<64xf32>
    %cst_35 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %307 = stablehlo.reduce(%301 init: %cst_35) applies stablehlo.maximum across dimensions = [1] : (tensor<64x32xf32>, tensor<f32>) -> tensor<64xf32>
    %cst_36 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %308 = stablehlo.broadcast_in_dim %cst_36, dims = [] : (tensor<f32>) -> tensor<64xf32>
    %309 = stablehlo.maximum %308, %307 : tensor<64xf32>
    %310 = stablehlo.broadcast_in_dim %309, dims = [0] : (tensor<64xf32>) -> tensor<64x1xf32>
    %311 = stablehlo.broadcast_in_dim %310, dims = [0, 1] : (tensor<64x1xf32>) -> tensor<64x32xf32>
    %312 = stablehlo.subtract %301, %311 : tensor<64x32xf32>
    %313 = stablehlo.exponential %312 : tensor<64x32xf32>
    %cst_37 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %314 = stablehlo.reduce(%313 init: %cst_37) applies stablehlo.add across dimensions = [1] : (tensor<64x32xf32>, tensor<f32>) -> tensor<64xf32>
    %315 = stablehlo.log %314 : tensor<64xf32>
    %316 = stablehlo.reshape %310 : (tensor<64x1xf32>) -> tensor<64xf32>
    %317 = stablehlo.broadcast_in_dim %305, dims = [0] : (tensor<64xi64>) -> tensor<64x1xi64>
    %318 = call @take_along_axis(%301, %317) : (tensor<64x32xf32>, tensor<64x1xi64>) -> tensor<64x1xf32>
    %319 = stablehlo.reshape %318 : (tensor<64x1xf32>) -> tensor<64xf32>
    %320 = stablehlo.subtract %319, %316 : tensor<64xf32>
    %321 = stablehlo.subtract %315, %320 : tensor<64xf32>
    %322 = stablehlo.multiply %306, %321 : tensor<64xf32>
    %c_38 = stablehlo.constant dense<-100> : tensor<i64>
    %323 = stablehlo.broadcast_in_dim %c_38, dims = [] : (tensor<i64>) -> tensor<64xi64>
    %324 = stablehlo.compare NE, %302, %323, SIGNED : (tensor<64xi64>, tensor<64xi64>) -> tensor<64xi1>
    %cst_39 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %325 = call @_where_6(%324, %322, %cst_39) : (tensor<64xi1>, tensor<64xf32>, tensor<f32>) -> tensor<64xf32>
    %cst_40 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %326 = stablehlo.reduce(%306 init: %cst_40) applies stablehlo.add across dimensions = [0] : (tensor<64xf32>, tensor<f32>) -> tensor<f32>
    %cst_41 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %327 = stablehlo.reduce(%325 init: %cst_41) applies stablehlo.add across dimensions = [0] : (tensor<64xf32>, tensor<f32>) -> tensor<f32>
    %328 = stablehlo.divide %327, %326 : tensor<f32>
    %329 = stablehlo.add %315, %316 : tensor<64xf32>
    return %328 : tensor<f32>
  }
  func.func private @atleast_2d(%arg0: tensor<48x16xf32>) -> tensor<48x16xf32> {
    return %arg0 : tensor<48x16xf32>
  }
  func.func private @_where(%arg0: tensor<8x8xi1>, %arg1: tensor<8x2x8x8xf32>, %arg2: tensor<f32>) -> tensor<8x2x8x8xf32> {
    %0 = stablehlo.broadcast_in_dim %arg0, dims = [2, 3] : (tensor<8x8xi1>) -> tensor<8x2x8x8xi1>
    %1 = stablehlo.broadcast_in_dim %arg2, dims = [] : (tensor<f32>) -> tensor<8x2x8x8xf32>
    %2 = stablehlo.select %0, %arg1, %1 : tensor<8x2x8x8xi1>, tensor<8x2x8x8xf32>
    return %2 : tensor<8x2x8x8xf32>
  }
  func.func private @atleast_2d_0(%arg0: tensor<16x16xf32>) -> tensor<16x16xf32> {
    return %arg0 : tensor<16x16xf32>
  }
  func.func private @atleast_2d_1(%arg0: tensor<64x16xf32>) -> tensor<64x16xf32> {
    return %arg0 : tensor<64x16xf32>
  }
  func.func private @atleast_2d_2(%arg0: tensor<16x64xf32>) -> tensor<16x64xf32> {
    return %arg0 : tensor<16x64xf32>
  }
  func.func private @atleast_2d_3(%arg0: tensor<32x16xf32>) -> tensor<32x16xf32> {
    return %arg0 : tensor<32x16xf32>
  }
  func.func private @_where_4(%arg0: tensor<64xi1>, %arg1: tensor<64xi64>, %arg2: tensor<i64>) -> tensor<64xi64> {
    %0 = stablehlo.broadcast_in_dim %arg2, dims = [] : (tensor<i64>) -> tensor<64xi64>
    %1 = stablehlo.select %arg0, %arg1, %0 : tensor<64xi1>, tensor<64xi64>
    return %1 : tensor<64xi64>
  }
  func.func private @_where_5(%arg0: tensor<64xi1>, %arg1: tensor<f32>, %arg2: tensor<f32>) -> tensor<64xf32> {
    %0 = stablehlo.broadcast_in_dim %arg1, dims = [] : (tensor<f32>) -> tensor<64xf32>
    %1 = stablehlo.broadcast_in_dim %arg2, dims = [] : (tensor<f32>) -> tensor<64xf32>
    %2 = stablehlo.select %arg0, %0, %1 : tensor<64xi1>, tensor<64xf32>
    return %2 : tensor<64xf32>
  }
  func.func private @take_along_axis(%arg0: tensor<64x32xf32>, %arg1: tensor<64x1xi64>) -> tensor<64x1xf32> {
    %0 = stablehlo.convert %arg1 : (tensor<64x1xi64>) -> tensor<64x1xi32>
    %c = stablehlo.constant dense<0> : tensor<i32>
    %1 = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<i32>) -> tensor<64x1xi32>
    %2 = stablehlo.compare LT, %0, %1, SIGNED : (tensor<64x1xi32>, tensor<64x1xi32>) -> tensor<64x1xi1>
    %c_0 = stablehlo.constant dense<32> : tensor<i32>
    %3 = stablehlo.broadcast_in_dim %c_0, dims = [] : (tensor<i32>) -> tensor<64x1xi32>
    %4 = stablehlo.add %0, %3 : tensor<64x1xi32>
    %5 = stablehlo.select %2, %4, %0 : tensor<64x1xi1>, tensor<64x1xi32>
    %6 = stablehlo.reshape %5 : (tensor<64x1xi32>) -> tensor<64x1x1xi32>
    %c_1 = stablehlo.constant dense<31> : tensor<1xi32>
    %c_2 = stablehlo.constant dense<0> : tensor<i32>
    %7 = stablehlo.broadcast_in_dim %c_2, dims = [] : (tensor<i32>) -> tensor<64x1x1xi32>
    %8 = stablehlo.compare GE, %6, %7, SIGNED : (tensor<64x1x1xi32>, tensor<64x1x1xi32>) -> tensor<64x1x1xi1>
    %9 = stablehlo.broadcast_in_dim %c_1, dims = [2] : (tensor<1xi32>) -> tensor<1x1x1xi32>
    %10 = stablehlo.broadcast_in_dim %9, dims = [0, 1, 2] : (tensor<1x1x1xi32>) -> tensor<64x1x1xi32>
    %11 = stablehlo.compare LE, %6, %10, SIGNED : (tensor<64x1x1xi32>, tensor<64x1x1xi32>) -> tensor<64x1x1xi1>
    %12 = stablehlo.and %8, %11 : tensor<64x1x1xi1>
    %c_3 = stablehlo.constant dense<true> : tensor<i1>
    %13 = stablehlo.reduce(%12 init: %c_3) applies stablehlo.and across dimensions = [2] : (tensor<64x1x1xi1>, tensor<i1>) -> tensor<64x1xi1>
    %14 = "stablehlo.gather"(%arg0, %6) <{dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [1], operand_batching_dims = [0], start_indices_batching_dims = [0], start_index_map = [1], index_vector_dim = 2>, indices_are_sorted = false, slice_sizes = array<i64: 1, 1>}> : (tensor<64x32xf32>, tensor<64x1x1xi32>) -> tensor<64x1xf32>
    %cst = stablehlo.constant dense<0x7FC00000> : tensor<f32>
    %15 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<64x1xf32>
    %16 = stablehlo.select %13, %14, %15 : tensor<64x1xi1>, tensor<64x1xf32>
    return %16 : tensor<64x1xf32>
  }
  func.func private @_where_6(%arg0: tensor<64xi1>, %arg1: tensor<64xf32>, %arg2: tensor<f32>) -> tensor<64xf32> {
    %0 = stablehlo.broadcast_in_dim %arg2, dims = [] : (tensor<f32>) -> tensor<64xf32>
    %1 = stablehlo.select %arg0, %arg1, %0 : tensor<64xi1>, tensor<64xf32>
    return %1 : tensor<64xf32>
  }
}

#include "dtrain/model/transformer/internal/transformer_rows_body.h"

namespace dtrain::model {

using kernels::Bfloat16Bits;

const TransformerRows<float, float> kFloatTransformerAvx512 = kTransformer<float, float>;
const TransformerRows<double, double> kDoubleTransformerAvx512 = kTransformer<double, double>;
const TransformerRows<Bfloat16Bits, float> kBfloat16TransformerAvx512 =
    kTransformer<Bfloat16Bits, float>;

}  // namespace dtrain::model

#include "dtrain/model/transformer/internal/transformer_rows_body.h"

namespace dtrain::model {

using kernels::Bfloat16Bits;

const TransformerRows<float, float> kFloatTransformerAvx2 = kTransformer<float, float>;
const TransformerRows<double, double> kDoubleTransformerAvx2 = kTransformer<double, double>;
const TransformerRows<Bfloat16Bits, float> kBfloat16TransformerAvx2 =
    kTransformer<Bfloat16Bits, float>;

}  // namespace dtrain::model

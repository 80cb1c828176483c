#include "dtrain/model/transformer/internal/transformer_rows_body.h"

namespace dtrain::model {

using kernels::Bfloat16Bits;

const TransformerRows<float, float> kFloatTransformerBaseline = kTransformer<float, float>;
const TransformerRows<double, double> kDoubleTransformerBaseline = kTransformer<double, double>;
const TransformerRows<Bfloat16Bits, float> kBfloat16TransformerBaseline =
    kTransformer<Bfloat16Bits, float>;

}  // namespace dtrain::model

#include "dtrain/model/model.h"

namespace dtrain::model {

std::int64_t Model::num_elements() const {
  std::int64_t total = 0;
  for (const param::ParameterSpec& spec : parameters) total += spec.num_elements();
  return total;
}

double Model::training_flops_per_token() const {
  double forward = 0;
  for (const BlockCost& cost : costs) forward += cost.forward_flops_per_token;
  return 3 * forward;
}

}  // namespace dtrain::model

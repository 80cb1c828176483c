#include "dtrain/parallel/tensor/group_tensor_axis.h"

#include "dtrain/base/check.h"
#include "dtrain/parallel/tensor/column_split.h"
#include "dtrain/parallel/tensor/row_split.h"
#include "dtrain/parallel/tensor/split_vocabulary.h"

namespace dtrain::parallel {
namespace {

class GroupTensorAxis final : public model::TensorAxis {
 public:
  explicit GroupTensorAxis(const TensorGroups& groups)
      : axis_{.group = groups.axis, .shares_heads = groups.head != nullptr},
        head_{.group = groups.head, .shares_heads = true} {
    DTRAIN_CHECK(groups.axis != nullptr);
  }

  [[nodiscard]] model::ColumnSplit column_split(const at::Tensor& x,
                                                const at::Tensor& weight) override {
    const std::int64_t width = x.size(-1);
    const model::ColumnSplit split =
        parallel::column_split(axis_, x.reshape({1, -1, width}), weight);
    return {.product = split.product, .x = split.x.view(x.sizes())};
  }

  [[nodiscard]] at::Tensor row_split(const at::Tensor& x, const at::Tensor& weight) override {
    return parallel::row_split(axis_, x, weight);
  }

  [[nodiscard]] at::Tensor column_split_in_head(const at::Tensor& x,
                                                const at::Tensor& weight) override {
    if (head_.group == nullptr) return TensorAxis::column_split_in_head(x, weight);
    return parallel::column_split(head_, x, weight).product;
  }

  [[nodiscard]] at::Tensor reduce_within_head(const at::Tensor& partial) override {
    if (head_.group == nullptr) return partial;
    return reduce(*head_.group, partial, partial.scalar_type());
  }

  [[nodiscard]] at::Tensor embedding(const at::Tensor& weight, const at::Tensor& ids,
                                     std::int64_t first) override {
    return split_embedding(*axis_.group, weight, ids, first);
  }

  [[nodiscard]] at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& targets,
                                         std::int64_t first) override {
    return split_cross_entropy(*axis_.group, logits, targets, first);
  }

  [[nodiscard]] std::int64_t index() const override { return axis_.group->rank(); }
  [[nodiscard]] std::int64_t size() const override { return axis_.group->size(); }

 private:
  ProductSplit axis_;
  ProductSplit head_;
};

}  // namespace

std::unique_ptr<model::TensorAxis> make_tensor_axis(const TensorGroups& groups) {
  return std::make_unique<GroupTensorAxis>(groups);
}

}  // namespace dtrain::parallel

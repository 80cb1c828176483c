#include "dtrain/parallel/tensor/group_tensor_axis.h"

#include <algorithm>
#include <span>
#include <vector>

#include "dtrain/parallel/tensor/split_vocabulary.h"
#include "dtrain/parallel/tensor/splits.h"

namespace dtrain::parallel {
namespace {

// Where a subgroup has several ranks, each of them holds less than the unit that they share.
bool has_shared_parts(std::span<comm::ProcessGroup* const> subgroups) {
  return std::any_of(subgroups.begin(), subgroups.end(),
                     [](const comm::ProcessGroup* group) { return group->size() > 1; });
}

class GroupTensorAxis final : public model::TensorAxis {
 public:
  explicit GroupTensorAxis(const mesh::MeshGroups& groups)
      : axis_{.group = groups.along(mesh::Axis::tp),
              .shares_heads = has_shared_parts(groups.tensor_subgroups())} {
    for (comm::ProcessGroup* group : groups.tensor_subgroups()) {
      subgroups_.push_back({.group = *group, .shares_heads = true});
    }
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

  [[nodiscard]] at::Tensor column_split_within(std::size_t subgroup, const at::Tensor& x,
                                               const at::Tensor& weight) override {
    const ProductSplit& split = subgroups_.at(subgroup);
    if (split.group.size() == 1) return TensorAxis::column_split_within(subgroup, x, weight);
    return parallel::column_split(split, x, weight).product;
  }

  [[nodiscard]] at::Tensor reduce_within(std::size_t subgroup, const at::Tensor& partial) override {
    comm::ProcessGroup& group = subgroups_.at(subgroup).group;
    return group.size() == 1 ? partial : parallel::reduce(group, partial, partial.scalar_type());
  }

  [[nodiscard]] at::Tensor reduce(const at::Tensor& partial) override {
    return parallel::reduce(axis_.group, partial, partial.scalar_type());
  }

  [[nodiscard]] at::Tensor embedding(const at::Tensor& weight, const at::Tensor& ids,
                                     std::int64_t first) override {
    return split_embedding(axis_.group, weight, ids, first);
  }

  [[nodiscard]] at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& targets,
                                         std::int64_t first) override {
    return split_cross_entropy(axis_.group, logits, targets, first);
  }

  [[nodiscard]] std::int64_t index() const override { return axis_.group.rank(); }
  [[nodiscard]] std::int64_t size() const override { return axis_.group.size(); }

 private:
  ProductSplit axis_;
  std::vector<ProductSplit> subgroups_;
};

}  // namespace

std::unique_ptr<model::TensorAxis> make_tensor_axis(const mesh::MeshGroups& groups) {
  if (groups.mesh().size(mesh::Axis::tp) == 1) return std::make_unique<model::TensorAxis>();
  return std::make_unique<GroupTensorAxis>(groups);
}

}  // namespace dtrain::parallel

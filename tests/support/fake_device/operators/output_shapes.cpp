#include "support/fake_device/operators/output_shapes.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <set>
#include <utility>

namespace dtrain::testing::fake {
namespace {

bool is_tensors(const c10::TypePtr& type) {
  return type->isSubtypeOf(*c10::TensorType::get()) || type->kind() == c10::TypeKind::ListType;
}

bool is_mask(const std::optional<at::Tensor>& index) {
  return index && index->defined() &&
         (index->scalar_type() == at::kBool || index->scalar_type() == at::kByte);
}

bool depends_on_values(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  if (!op.hasTag(at::Tag::dynamic_output_shape)) return false;
  if (op.schema().name() != "aten::index") return true;
  return std::ranges::any_of(stack.back().toOptionalTensorVector(), is_mask);
}

at::Tensor without_values(const at::Tensor& like, bool has_meta) {
  const at::TensorOptions options = like.options();
  if (has_meta) return at::empty_strided(like.sizes(), like.strides(), options.device(c10::kMeta));
  const std::size_t bytes =
      at::detail::computeStorageNbytes(like.sizes(), like.strides(), like.itemsize());
  const auto elements = static_cast<std::int64_t>(bytes / like.itemsize());
  return at::zeros({elements}, options).as_strided(like.sizes(), like.strides());
}

// Whether a result is an argument, or shares its memory.
bool has_alias(torch::jit::Stack results, const std::set<const c10::StorageImpl*>& arguments) {
  bool found = false;
  for (c10::IValue& value : results) {
    replace_tensors(value, [&](const at::Tensor& t) {
      found = found || arguments.contains(t.storage().unsafeGetStorageImpl());
      return t;
    });
  }
  return found;
}

}  // namespace

Results results_of(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  const std::vector<c10::Argument>& returns = op.schema().returns();
  const auto is_written = [](const c10::Argument& r) {
    return r.alias_info() != nullptr && r.alias_info()->isWrite();
  };
  const auto is_view = [](const c10::Argument& r) {
    return r.alias_info() != nullptr && !r.alias_info()->isWrite();
  };
  const auto is_value = [](const c10::Argument& r) { return !is_tensors(r.type()); };
  if (std::ranges::any_of(returns, is_value)) return Results::host_values;
  if (std::ranges::all_of(returns, is_written)) return Results::written_arguments;
  if (std::ranges::all_of(returns, is_view)) return Results::views;
  return depends_on_values(op, stack) ? Results::tensors_of_unknown_shape : Results::new_tensors;
}

void replace_tensors(c10::IValue& value,
                     const std::function<at::Tensor(const at::Tensor&)>& replacement) {
  const auto replaced = [&](const at::Tensor& t) { return t.defined() ? replacement(t) : t; };
  if (value.isTensor()) {
    value = replaced(value.toTensor());
  } else if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& t : value.toTensorVector()) list.push_back(replaced(t));
    value = std::move(list);
  } else if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& t : value.toOptionalTensorVector()) {
      list.push_back(t ? std::optional(replaced(*t)) : std::nullopt);
    }
    value = std::move(list);
  }
}

std::vector<at::Tensor> tensors_in(torch::jit::Stack values) {
  std::vector<at::Tensor> tensors;
  for (c10::IValue& value : values) {
    replace_tensors(value, [&](const at::Tensor& t) {
      tensors.push_back(t);
      return t;
    });
  }
  return tensors;
}

std::optional<torch::jit::Stack> predict_results(const c10::OperatorHandle& op,
                                                 const torch::jit::Stack& arguments) {
  const bool has_meta = op.hasKernelForDispatchKey(c10::DispatchKey::Meta);
  torch::jit::Stack stack = arguments;
  std::set<const c10::StorageImpl*> storages;
  for (c10::IValue& value : stack) {
    if (value.isGenerator()) return std::nullopt;  // a trial would use up random numbers
    replace_tensors(value, [&](const at::Tensor& t) {
      if (t.unsafeGetTensorImpl()->is_wrapped_number()) return t;
      at::Tensor made = without_values(t, has_meta);
      storages.insert(made.storage().unsafeGetStorageImpl());
      return made;
    });
  }
  try {
    const at::AutoDispatchBelowADInplaceOrView below;
    op.redispatchBoxed(
        c10::DispatchKeySet(has_meta ? c10::DispatchKey::Meta : c10::DispatchKey::CPU), &stack);
  } catch (const c10::Error&) {
    return std::nullopt;  // running it gives the true error, or a result
  }
  if (has_alias(stack, storages)) return std::nullopt;
  return stack;
}

}  // namespace dtrain::testing::fake

#include "support/fake_device/operators/cuda_operators.h"

#include <ATen/ops/ones.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <mutex>
#include <vector>

#include "support/fake_device/operators/launched_kernel.h"
#include "support/fake_device/operators/output_shapes.h"

namespace dtrain::testing::fake {
namespace {

using Stack = torch::jit::Stack;

// Kinds of dtypes, added up.
constexpr unsigned kFloats = 1;  // float32, float64
constexpr unsigned kHalves = 2;  // bfloat16, float16
constexpr unsigned kInts = 4;    // of up to 64 bits, unsigned only of 8
constexpr unsigned kBool = 8;
constexpr unsigned kComplex = 16;  // of float32 and float64
constexpr unsigned kReals = kFloats | kHalves;
constexpr unsigned kNumbers = kReals | kInts;
constexpr unsigned kOrdered = kNumbers | kBool;
constexpr unsigned kAll = kOrdered | kComplex;

unsigned kind_of(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
    case at::kDouble:
      return kFloats;
    case at::kBFloat16:
    case at::kHalf:
      return kHalves;
    case at::kByte:
    case at::kChar:
    case at::kShort:
    case at::kInt:
    case at::kLong:
      return kInts;
    case at::kBool:
      return kBool;
    case at::kComplexFloat:
    case at::kComplexDouble:
      return kComplex;
    default:
      return 0;
  }
}

bool is_absent(const c10::IValue& tensor) {
  return tensor.isNone() || !tensor.toTensor().defined();
}

// Rows whose addresses allow vectors take another kernel, which rounds differently.
void require_vector_rows(const at::Tensor& rows) {
  constexpr std::int64_t kVector = 4;  // elements
  const auto address = reinterpret_cast<std::uintptr_t>(rows.const_data_ptr());
  const std::size_t bytes = kVector * rows.itemsize();
  TORCH_CHECK(rows.size(-1) % kVector != 0 || address % bytes == 0,
              "layer norm: rows begin at multiples of ", bytes, " bytes, but these begin ",
              address % bytes, " bytes later");
}

void require_weight_like(const c10::IValue& weight, const at::Tensor& rows) {
  TORCH_CHECK(is_absent(weight) || weight.toTensor().scalar_type() == rows.scalar_type(),
              "layer norm: a weight has the dtype of its input, ", rows.scalar_type(), ", or ",
              "is left out, but this one is ", weight.toTensor().scalar_type());
}

// (input, normalized_shape, weight?, ...)
constexpr std::size_t kNormWeight = 2;
void check_layer_norm(const Stack& arguments) {
  const at::Tensor rows = arguments[0].toTensor();
  require_vector_rows(rows);
  require_weight_like(arguments[kNormWeight], rows);
}

// (grad_out, input, normalized_shape, mean, rstd, weight?, ...)
constexpr std::size_t kNormBackwardWeight = 5;
void check_layer_norm_backward(const Stack& arguments) {
  const at::Tensor rows = arguments[1].toTensor();
  require_vector_rows(rows);
  require_weight_like(arguments[kNormBackwardWeight], rows);
  TORCH_CHECK(arguments[0].toTensor().scalar_type() == rows.scalar_type(),
              "layer norm: a gradient has the dtype of the input");
}

// (self, dim, index, src): several values for one place are added by atomics, in any order.
void check_scatter_add(const Stack& arguments) {
  const at::Tensor index = arguments[2].toTensor();
  TORCH_CHECK(index.size(arguments[1].toInt()) == 1, "scatter_add: one index per row has one ",
              "order of addition, but this index is ", index.sizes());
}

struct CudaOperator {
  const char* name;
  unsigned kinds;  // of dtypes that its tensors may have
  void (*check)(const Stack& arguments) = nullptr;
};

constexpr std::array kOperators{
    CudaOperator{"_local_scalar_dense", kAll},
    CudaOperator{"_log_softmax", kReals},
    CudaOperator{"_log_softmax_backward_data", kReals},
    CudaOperator{"abs", kNumbers | kComplex},
    CudaOperator{"add", kAll},
    CudaOperator{"addcmul", kNumbers | kComplex},
    CudaOperator{"addmm", kReals | kComplex},
    CudaOperator{"addmv", kReals | kComplex},
    CudaOperator{"all", kAll},
    CudaOperator{"amax", kOrdered},
    CudaOperator{"any", kAll},
    CudaOperator{"arange", kNumbers},
    CudaOperator{"bitwise_and", kInts | kBool},
    CudaOperator{"bmm", kReals | kComplex},
    CudaOperator{"cat", kAll},
    CudaOperator{"clamp_max", kNumbers},
    CudaOperator{"copy", kAll},
    CudaOperator{"cumsum", kNumbers | kComplex},
    CudaOperator{"div", kAll},
    CudaOperator{"embedding_dense_backward", kNumbers},
    CudaOperator{"eq", kAll},
    CudaOperator{"exp", kReals | kComplex},
    CudaOperator{"fill", kAll},
    CudaOperator{"gather", kAll},
    CudaOperator{"ge", kOrdered},
    CudaOperator{"gt", kOrdered},
    CudaOperator{"index_add", kAll},
    CudaOperator{"index_copy", kAll},
    CudaOperator{"index_select", kAll},
    CudaOperator{"le", kOrdered},
    CudaOperator{"log", kReals | kComplex},
    CudaOperator{"logical_and", kAll},
    CudaOperator{"logical_not", kAll},
    CudaOperator{"logical_or", kAll},
    CudaOperator{"lt", kOrdered},
    CudaOperator{"masked_fill", kAll},
    CudaOperator{"mm", kReals | kComplex},
    CudaOperator{"mul", kAll},
    CudaOperator{"native_layer_norm", kReals, &check_layer_norm},
    CudaOperator{"native_layer_norm_backward", kReals, &check_layer_norm_backward},
    CudaOperator{"ne", kAll},
    CudaOperator{"neg", kNumbers | kComplex},
    CudaOperator{"nll_loss_backward", kNumbers},
    CudaOperator{"nll_loss_forward", kNumbers},
    CudaOperator{"nonzero", kAll},
    CudaOperator{"relu", kNumbers},
    CudaOperator{"scatter_add", kAll, &check_scatter_add},
    CudaOperator{"sort", kOrdered},
    CudaOperator{"sqrt", kReals | kComplex},
    CudaOperator{"sub", kNumbers | kComplex},
    CudaOperator{"sum", kAll},
    CudaOperator{"threshold_backward", kNumbers},
    CudaOperator{"topk", kNumbers},
    CudaOperator{"tril", kAll},
    CudaOperator{"where", kAll},
    CudaOperator{"zero", kAll},
};

// Without the namespace and the "_" of in-place operators.
std::string short_name(std::string_view name) {
  constexpr std::string_view kAten = "aten::";
  if (!name.starts_with(kAten)) return std::string(name);
  name.remove_prefix(kAten.size());
  if (name.ends_with('_') && !name.ends_with("__")) name.remove_suffix(1);
  return std::string(name);
}

struct Calls {
  std::mutex mutex;
  std::set<std::string> names;
};

Calls& calls() {
  static auto* const made = new Calls;  // never freed: streams may outlive main
  return *made;
}

}  // namespace

std::set<std::string> listed_operators() {
  std::set<std::string> names;
  for (const CudaOperator& each : kOperators) names.insert(each.name);
  return names;
}

std::set<std::string> called_operators() {
  const std::lock_guard lock(calls().mutex);
  return calls().names;
}

std::set<std::string> unlisted_operators() {
  std::set<std::string> unlisted;
  std::ranges::set_difference(called_operators(), listed_operators(),
                              std::inserter(unlisted, unlisted.end()));
  return unlisted;
}

void note_call(std::string_view name) {
  const std::lock_guard lock(calls().mutex);
  calls().names.emplace(name);
}

void check_as_cuda(const c10::OperatorHandle& op, const Stack& arguments) {
  const std::string& full = op.schema().name();
  if (!full.starts_with("aten::")) return;  // a kernel of our own
  const std::string name = short_name(full);
  note_call(name);
  const auto* const listed =
      std::ranges::find_if(kOperators, [&](const CudaOperator& each) { return each.name == name; });
  if (listed == kOperators.end()) return;
  for (const at::Tensor& tensor : tensors_in(arguments)) {
    if (!is_on_device(tensor)) continue;
    TORCH_CHECK((kind_of(tensor.scalar_type()) & listed->kinds) != 0, name,
                ": CUDA has no kernel for ", tensor.scalar_type());
  }
  if (listed->check != nullptr) listed->check(arguments);
}

void compute_as_cuda(const c10::OperatorHandle& op, Stack& host_arguments) {
  const std::string& name = op.schema().name();
  const bool is_forward = name == "aten::native_layer_norm";
  if (!is_forward && name != "aten::native_layer_norm_backward") return;
  const at::Tensor rows = host_arguments[is_forward ? 0 : 1].toTensor();
  c10::IValue& weight = host_arguments[is_forward ? kNormWeight : kNormBackwardWeight];
  if (!is_absent(weight) || !at::isReducedFloatingType(rows.scalar_type())) return;
  weight = at::ones({rows.size(-1)}, at::kFloat);
}

}  // namespace dtrain::testing::fake

#include "dtrain/model/bdh/internal/chunked_attention.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/tril.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "dtrain/device/operator.h"

namespace dtrain::model::bdh {
namespace {

constexpr std::int64_t kMirrorTile = 32;  // rows per task

// Rows [begin, end) of one matrix. Adding zero, as lower + lowerᵀ does, turns -0 into 0.
template <typename scalar_t>
void mirror_rows(const scalar_t* in, scalar_t* out, std::int64_t length, std::int64_t begin,
                 std::int64_t end) {
  const scalar_t kZero(0);
  for (std::int64_t column = 0; column < length; ++column) {
    for (std::int64_t row = begin; row < end; ++row) {
      const scalar_t own = column < row ? in[row * length + column] : kZero;
      const scalar_t mirrored = row < column ? in[column * length + row] : kZero;
      out[row * length + column] = own + mirrored;
    }
  }
}

at::Tensor mirror_on_cpu(const at::Tensor& matrices) {
  const std::int64_t length = matrices.size(-1);
  at::Tensor out = at::empty_like(matrices);
  const std::int64_t tiles = (length + kMirrorTile - 1) / kMirrorTile;
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kBFloat16, at::kHalf, matrices.scalar_type(), "mirror_lower", [&] {
        const auto* in_data = matrices.const_data_ptr<scalar_t>();
        auto* out_data = out.mutable_data_ptr<scalar_t>();
        at::parallel_for(0, matrices.size(0) * tiles, 1,
                         [&](std::int64_t first, std::int64_t last) {
                           for (std::int64_t tile = first; tile < last; ++tile) {
                             const std::int64_t at = tile / tiles * length * length;
                             const std::int64_t begin = tile % tiles * kMirrorTile;
                             mirror_rows(in_data + at, out_data + at, length, begin,
                                         std::min(begin + kMirrorTile, length));
                           }
                         });
      });
  return out;
}

TORCH_LIBRARY_FRAGMENT(dtrain, operators) {
  operators.def("mirror_lower(Tensor matrices) -> Tensor");
}
TORCH_LIBRARY_IMPL(dtrain, CPU, kernels) { kernels.impl("mirror_lower", mirror_on_cpu); }

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Positions [begin, end) of a sequence.
struct Chunk {
  std::int64_t begin;
  std::int64_t end;

  // (batch, T, columns) -> (batch, end - begin, columns), a view.
  [[nodiscard]] at::Tensor of(const at::Tensor& sequence) const {
    return sequence.slice(1, begin, end);
  }
};

std::vector<Chunk> chunks_of(std::int64_t length, std::int64_t size) {
  std::vector<Chunk> chunks;
  for (std::int64_t begin = 0; begin < length; begin += size) {
    chunks.push_back({begin, std::min(begin + size, length)});
  }
  return chunks;
}

// The sum of left(s)ᵀ right(s) over chunks, (batch, N, D); kept in float32 for bfloat16.
class State {
 public:
  void add(const at::Tensor& left, const at::Tensor& right) {
    const at::Tensor product = at::bmm(left.mT(), right);
    if (sum_.defined()) {
      sum_.add_(product);
    } else {
      sum_ = product.scalar_type() == at::kBFloat16 ? product.to(at::kFloat) : product;
    }
  }
  [[nodiscard]] bool is_empty() const { return !sum_.defined(); }
  [[nodiscard]] at::Tensor rounded_to(at::ScalarType dtype) const { return sum_.to(dtype); }

 private:
  at::Tensor sum_;
};

// Scores are computed in the dtype of q; products with values in the dtype of values.
class ChunkedAttention : public torch::autograd::Function<ChunkedAttention> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& q, const at::Tensor& values,
                            std::int64_t chunk_size) {
    const at::ScalarType dtype = values.scalar_type();
    at::Tensor attended = at::empty_like(values);
    variable_list saved{q, values};
    State past;
    for (const Chunk& chunk : chunks_of(q.size(1), chunk_size)) {
      const at::Tensor own = chunk.of(q);                              // (batch, C, N)
      const at::Tensor scores = at::bmm(own, own.mT()).tril_(-1);      // (batch, C, C)
      const at::Tensor wide = own.to(dtype);                           // (batch, C, N)
      at::Tensor found = at::bmm(scores.to(dtype), chunk.of(values));  // (batch, C, D)
      if (!past.is_empty()) found.add_(at::bmm(wide, past.rounded_to(dtype)));
      chunk.of(attended).copy_(found);
      if (chunk.end < q.size(1)) past.add(wide, chunk.of(values));
      saved.push_back(scores);
    }
    ctx->save_for_backward(std::move(saved));
    ctx->saved_data["chunk"] = chunk_size;
    return attended;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor& q = saved[0];
    const at::Tensor& values = saved[1];
    const std::vector<Chunk> chunks = chunks_of(q.size(1), ctx->saved_data["chunk"].toInt());
    const at::Tensor d_q = at::empty_like(q);
    const at::Tensor d_values = at::empty_like(values);
    read_past(q, values, gradients[0], chunks, d_q);
    read_future(saved, gradients[0], chunks, d_q, d_values);
    return {d_q, d_values, at::Tensor()};
  }

 private:
  // Ascending: the gradient of each query through its chunk's scores and the state before it.
  static void read_past(const at::Tensor& q, const at::Tensor& values, const at::Tensor& gradient,
                        const std::vector<Chunk>& chunks, const at::Tensor& d_q) {
    State past;
    for (const Chunk& chunk : chunks) {
      const at::Tensor own = chunk.of(q);
      const at::Tensor given = chunk.of(gradient);  // (batch, C, D)
      const at::Tensor d_scores = at::bmm(given, chunk.of(values).mT()).to(q.dtype());
      at::Tensor found = at::bmm(mirror_lower(d_scores), own);  // (batch, C, N)
      if (!past.is_empty()) {
        found.add_(at::bmm(given, past.rounded_to(given.scalar_type()).mT()));
      }
      chunk.of(d_q).copy_(found);
      if (chunk.end < q.size(1)) past.add(own.to(values.dtype()), chunk.of(values));
    }
  }

  // Descending: the gradient of each query and value through the states that later chunks read.
  static void read_future(const variable_list& saved, const at::Tensor& gradient,
                          const std::vector<Chunk>& chunks, const at::Tensor& d_q,
                          const at::Tensor& d_values) {
    const at::ScalarType dtype = gradient.scalar_type();
    State future;  // the gradient of the state
    for (std::size_t i = chunks.size(); i-- > 0;) {
      const Chunk& chunk = chunks[i];
      const at::Tensor wide = chunk.of(saved[0]).to(dtype);
      const at::Tensor given = chunk.of(gradient);
      at::Tensor found = at::bmm(saved[2 + i].to(dtype).mT(), given);  // (batch, C, D)
      if (!future.is_empty()) {
        const at::Tensor state = future.rounded_to(dtype);
        found.add_(at::bmm(wide, state));
        chunk.of(d_q).add_(at::bmm(chunk.of(saved[1]), state.mT()));
      }
      chunk.of(d_values).copy_(found);
      if (chunk.begin > 0) future.add(wide, given);
    }
  }
};

}  // namespace

at::Tensor mirror_lower(const at::Tensor& matrices) {
  static const device::Operator<decltype(mirror_on_cpu)> kMirror("dtrain::mirror_lower");
  return kMirror(matrices.contiguous());
}

at::Tensor attend_in_chunks(const at::Tensor& q, const at::Tensor& values, std::int64_t chunk) {
  return ChunkedAttention::apply(q, values, chunk);
}

ChunkWork chunk_work(at::ScalarType dtype, std::int64_t states, std::int64_t queries,
                     std::int64_t scores) {
  const auto low = static_cast<std::int64_t>(c10::elementSize(dtype));
  const std::int64_t wide = std::max<std::int64_t>(4, low);
  const std::int64_t product = dtype == at::kHalf ? wide : low;
  const std::int64_t rounded = product == wide ? 0 : low;
  const std::int64_t widened = dtype == at::kHalf ? queries * wide : 0;
  const std::int64_t converted = product == wide ? 0 : wide;  // CPU kernels convert before adding
  const std::int64_t adding = states * (wide + product + converted) + widened;
  const std::int64_t reading = states * (wide + rounded) + queries * product;
  return {.forward = adding, .backward = std::max(adding, reading) + queries * low + scores * low};
}

}  // namespace dtrain::model::bdh

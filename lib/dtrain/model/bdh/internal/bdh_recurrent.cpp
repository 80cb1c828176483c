#include "dtrain/model/bdh/internal/bdh_recurrent.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/mv.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/view_as_complex.h>
#include <ATen/ops/view_as_real.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "dtrain/base/error.h"
#include "dtrain/config/bdh/settings.h"
#include "dtrain/model/bdh/internal/bdh_blocks.h"
#include "dtrain/model/bdh/internal/rope.h"

namespace dtrain::model::bdh {
namespace {

using config::bdh::kMaxPositions;

constexpr std::int64_t kChunk = 64;  // positions of a prompt, or rotations, computed at once

}  // namespace

BdhRecurrent::BdhRecurrent(const BdhSizes& sizes, const param::Arena& weights) : sizes_(sizes) {
  const at::NoGradGuard no_grad;
  const BdhParameters ids = parameter_ids(sizes);
  const auto options = weights.flat().options();
  const auto wide = widened(at::empty({0}, options)).options();  // of sums over tokens
  const std::int64_t n = sizes.all_neurons();
  embed_ = weights.view(ids.embed).detach();
  lm_head_ = weights.view(ids.lm_head).detach().t();
  for (const LevelParameters& level : ids.layers) {
    levels_.push_back(
        {.encoder = weights.view(level.encoder).detach(),
         .encoder_v =
             weights.view(level.encoder_v).detach().view({sizes.heads, sizes.neurons, sizes.width}),
         .decoder = weights.view(level.decoder).detach().t(),
         .state = at::zeros({sizes.heads, sizes.neurons, sizes.width}, wide)});
  }
  xs_ = at::empty({n}, options);
  q_ = at::empty({n}, wide);
  attended_ = at::empty({sizes.heads, 1, sizes.width}, wide);
  ys_ = at::empty({sizes.heads, sizes.neurons, 1}, options);
  y_ = at::empty({sizes.width}, options);
}

// Checks that `tokens` may come next.
void BdhRecurrent::check_tokens(std::span<const std::int64_t> tokens) const {
  for (const std::int64_t token : tokens) {
    DTRAIN_CHECK(token >= 0 && token < sizes_.vocab, "token {}", token);
  }
  const std::int64_t last = position_ + std::ssize(tokens) - 1;
  if (last >= kMaxPositions) {
    base::fail(base::ErrorKind::usage,
               "position {} exceeds the maximum of {} positions of BDH; use a shorter prompt or "
               "fewer --max-tokens",
               last, kMaxPositions);
  }
}

// (count, N/2) complex: the rotations of each pair from position_ on, within one chunk.
at::Tensor BdhRecurrent::rotations(std::int64_t count) {
  const std::int64_t row = position_ % kChunk;
  if (row == 0) {
    rotations_ = rope_rotations(position_, position_ + kChunk, {sizes_.neurons}, q_.options());
  }
  return at::view_as_complex(rotations_.narrow(0, row, count));
}

void BdhRecurrent::run_level(Level& level, const at::Tensor& rotation) {
  const std::int64_t heads = sizes_.heads;
  const std::int64_t neurons = sizes_.neurons;
  at::mv_out(xs_, level.encoder, x_).relu_();

  const std::vector<std::int64_t> pairs{heads, neurons / 2, 2};
  at::Tensor turned = at::view_as_complex(q_.view(pairs));  // (nh, N/2)
  at::mul_out(turned, at::view_as_complex(widened(xs_).view(pairs)), rotation);
  // The state is the sum of q(s) x(s)ᵀ over all earlier positions s, so multiplying by q gives this
  // row of S x. S is strictly lower, so this position is added afterwards.
  at::bmm_out(attended_, q_.view({heads, 1, neurons}), level.state);
  level.state.view({heads * neurons, sizes_.width}).addcmul_(q_.unsqueeze(1), widened(x_));

  const at::Tensor y_kv = layer_norm(attended_).to(x_.scalar_type());  // (nh, 1, D)
  at::bmm_out(ys_, level.encoder_v, y_kv.mT()).relu_();
  xs_.mul_(ys_.view({-1}));  // gated
  at::mv_out(y_, level.decoder, xs_);
  x_ = layer_norm(layer_norm(y_).add_(x_));
}

// As run_level for the positions of x (C, D), which follow those in the state. Returns the level's
// output (C, D), or nothing if only the state is needed.
at::Tensor BdhRecurrent::read_level(Level& level, const at::Tensor& x, const at::Tensor& rotations,
                                    bool needs_output) const {
  const std::int64_t count = x.size(0);
  const std::int64_t heads = sizes_.heads;
  const std::int64_t neurons = sizes_.neurons;
  at::Tensor xs = at::mm(x, level.encoder.t()).relu_();  // (C, nh*N)
  const at::Tensor pairs = at::view_as_complex(widened(xs).view({count, heads, neurons / 2, 2}));
  const at::Tensor turned = at::view_as_real(pairs.mul(rotations.unsqueeze(1)));
  const at::Tensor values = widened(x);                                       // (C, D)
  const at::Tensor q = turned.view({count, heads, neurons}).transpose(0, 1);  // (nh, C, N)
  at::Tensor attended;                                                        // (nh, C, D)
  if (needs_output) {
    const at::Tensor scores = at::bmm(q, q.mT()).tril_(-1);  // (nh, C, C)
    attended = at::bmm(scores, values.unsqueeze(0).expand({heads, count, sizes_.width}));
    attended.add_(at::bmm(q, level.state));
  }
  const at::Tensor flat = turned.view({count, heads * neurons});
  level.state.view({heads * neurons, sizes_.width}).addmm_(flat.t(), values);
  if (!needs_output) return {};

  const at::Tensor y_kv = layer_norm(attended).to(x.scalar_type());   // (nh, C, D)
  const at::Tensor ys = at::bmm(y_kv, level.encoder_v.mT()).relu_();  // (nh, C, N)
  xs.view({count, heads, neurons}).mul_(ys.transpose(0, 1));          // gated
  return layer_norm(layer_norm(at::mm(xs, level.decoder.t())).add_(x));
}

const at::Tensor& BdhRecurrent::read_prompt(std::span<const std::int64_t> tokens) {
  if (tokens.size() == 1) return step(tokens.front());
  const at::NoGradGuard no_grad;
  DTRAIN_CHECK(position_ == 0 && !tokens.empty(), "position {}", position_);
  check_tokens(tokens);
  const auto total = std::ssize(tokens);
  const at::Tensor ids =
      at::tensor(c10::ArrayRef<std::int64_t>(tokens.data(), tokens.size()), at::kLong)
          .to(embed_.device());
  at::Tensor x;  // (C, D)
  while (position_ < total) {
    const std::int64_t count = std::min(kChunk, total - position_);
    const at::Tensor turns = rotations(count);
    x = layer_norm(embed_.index_select(0, ids.narrow(0, position_, count)));
    position_ += count;
    for (Level& level : levels_) {
      // Only the last position's output of the last level is used.
      x = read_level(level, x, turns, &level != &levels_.back() || position_ == total);
    }
  }
  x_ = x.select(0, -1).clone();
  logits_ = widened(at::mv(lm_head_, x_));
  return logits_;
}

const at::Tensor& BdhRecurrent::step(std::int64_t token) {
  const at::NoGradGuard no_grad;
  check_tokens({&token, 1});
  const at::Tensor turn = rotations(1).select(0, 0);  // (N/2)
  x_ = layer_norm(embed_.select(0, token));
  for (Level& level : levels_) run_level(level, turn);
  ++position_;
  logits_ = widened(at::mv(lm_head_, x_));
  return logits_;
}

}  // namespace dtrain::model::bdh

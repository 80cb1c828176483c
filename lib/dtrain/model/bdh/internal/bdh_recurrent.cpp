#include "dtrain/model/bdh/internal/bdh_recurrent.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/mv.h>
#include <ATen/ops/view_as_complex.h>
#include <ATen/ops/zeros.h>

#include "dtrain/base/error.h"
#include "dtrain/config/bdh/settings.h"
#include "dtrain/model/bdh/internal/bdh_blocks.h"
#include "dtrain/model/bdh/internal/rope.h"

namespace dtrain::model::bdh {
namespace {

using config::bdh::kMaxPositions;

constexpr std::int64_t kRotationChunk = 64;  // positions whose rotations are computed at once

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

// (N/2) complex: the rotation of each pair at position_.
at::Tensor BdhRecurrent::rotation() {
  const std::int64_t row = position_ % kRotationChunk;
  if (row == 0) {
    rotations_ =
        rope_rotations(position_, position_ + kRotationChunk, {sizes_.neurons}, q_.options());
  }
  return at::view_as_complex(rotations_.select(0, row));
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

const at::Tensor& BdhRecurrent::step(std::int64_t token) {
  const at::NoGradGuard no_grad;
  DTRAIN_CHECK(token >= 0 && token < sizes_.vocab, "token {}", token);
  if (position_ >= kMaxPositions) {
    base::fail(base::ErrorKind::usage,
               "position {} exceeds the maximum of {} positions of BDH; use a shorter prompt or "
               "fewer --max-tokens",
               position_, kMaxPositions);
  }
  const at::Tensor turn = rotation();
  x_ = layer_norm(embed_.select(0, token));
  for (Level& level : levels_) run_level(level, turn);
  ++position_;
  logits_ = widened(at::mv(lm_head_, x_));
  return logits_;
}

}  // namespace dtrain::model::bdh

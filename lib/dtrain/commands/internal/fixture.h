// Golden numbers of the reference: a fixture (weights, a batch and what they give) and a trajectory
// of AdamW steps. tests/golden/README.md describes the files.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

#include "dtrain/config/config.h"

namespace dtrain::commands {

/// Rows of tokens with their targets.
struct TokenRows {
  at::Tensor inputs;   ///< (B, T) int64
  at::Tensor targets;  ///< (B, T) int64
};

struct Fixture {
  std::string path;
  config::ModelConfig model;                  ///< sizes, read off the weights; no dropout
  std::map<std::string, at::Tensor> weights;  ///< by exported name and shape
  TokenRows batch;
  double loss = 0;
  at::Tensor logits;                              ///< (B, T, V)
  std::map<std::string, at::Tensor> gradients;    ///< by exported name
  std::map<std::string, at::Tensor> activations;  ///< by the name that blocks report
  /// How far the reference itself moves by rounding, relative to the largest element, by check
  /// name; empty where the folder's meta.json says nothing of this fixture.
  std::map<std::string, double> noise;
};

/// The result is consistent: the tensors of one model and one batch, tokens in its vocabulary.
///
/// Throws: Error{checkpoint} naming the file and the tensor that is missing, of another dtype or
///         shape, not of this model, or holds a token outside the vocabulary.
[[nodiscard]] Fixture read_fixture(const std::string& path);

struct Trajectory {
  config::TrainConfig train;  ///< optimizer settings and number of steps
  std::vector<TokenRows> steps;
  std::vector<double> loss;
  std::vector<double> loss_fp64;
  std::vector<double> grad_norm_fp64;
  std::map<std::string, double> final_l2_fp64;  ///< by exported name
  TokenRows final_batch;
  double final_loss = 0;
  double noise = 0;  ///< largest absolute difference of losses between fp32 runs of the reference
};

/// Throws: Error{data} naming the file and what it lacks.
[[nodiscard]] Trajectory read_trajectory(const std::string& path, const std::string& name);

}  // namespace dtrain::commands

// Reads golden numbers of the reference implementation: a fixture (weights, one batch and its
// results) and a trajectory of AdamW steps. tests/golden/README.md describes the files.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "dtrain/config/config.h"
#include "dtrain/data/tokens/token_file.h"

namespace dtrain::commands {

/// Rows of tokens with their targets.
struct TokenRows {
  at::Tensor inputs;   ///< (B, T) int64
  at::Tensor targets;  ///< (B, T) int64
};

/// One batch on one model, and its expected results.
struct Fixture {
  std::string path;
  config::ModelConfig model;                  ///< sizes inferred from the weights; no dropout
  std::map<std::string, at::Tensor> weights;  ///< by exported name and shape
  TokenRows batch;
  double loss = 0;
  at::Tensor logits;                              ///< (B, T, V)
  std::map<std::string, at::Tensor> gradients;    ///< by exported name
  std::map<std::string, at::Tensor> activations;  ///< by the name that blocks report
  /// The reference's own rounding noise, relative to the largest element, by check name; empty if
  /// the folder's meta.json has no entry for this fixture.
  std::map<std::string, double> noise;
  /// The largest relative error of one step in float32; not given: that of the reference's fixtures.
  std::optional<double> tolerance = {};
};

/// Reads and validates a fixture: one model, one batch, tokens within the vocabulary.
///
/// Throws: Error{checkpoint} naming the file and the tensor that is missing, unknown, has a wrong
///         dtype or shape, or contains a token outside the vocabulary.
[[nodiscard]] Fixture read_fixture(const std::string& path);

/// The tokens that a trained model generates greedily.
struct GreedyTokens {
  std::vector<std::int64_t> prompt;
  std::vector<std::int64_t> all;  ///< prompt included
};

/// A short training run and its expected results.
struct Trajectory {
  config::TrainConfig train;      ///< optimizer settings and number of steps
  bool clips_as_pytorch = false;  ///< by PyTorch's clip_grad_norm_
  std::vector<TokenRows> steps;
  std::vector<double> loss;
  std::vector<double> loss_fp64;
  std::vector<double> grad_norm_fp64;
  std::map<std::string, double> final_l2_fp64;  ///< by exported name; empty if unknown
  TokenRows final_batch;                        ///< undefined tensors if there is none
  double final_loss = 0;
  std::optional<GreedyTokens> greedy = {};  ///< after a float32 run
  double noise = 0;  ///< largest absolute difference of losses between fp32 runs of the reference
};

/// Reads the trajectory `name` from a file.
///
/// Throws: Error{data} naming the file and the missing entry.
[[nodiscard]] Trajectory read_trajectory(const std::string& path, const std::string& name);

/// Reads a JSON file and passes it to `parse`.
///
/// Throws: Error{data} naming the file, and the trajectory `name` if it cannot be parsed.
[[nodiscard]] Trajectory read_json(const std::string& path, const std::string& name,
                                   const std::function<Trajectory(const nlohmann::json&)>& parse);

/// Returns AdamW's settings from the keys lr, weight_decay, betas and eps.
[[nodiscard]] config::TrainConfig adamw_of(const nlohmann::json& json);

/// Returns rows of `length` tokens of a text and their successors, from each offset on.
///
/// path:   the trajectory's file, for messages.
/// Throws: Error{data} naming both files if a row is outside the text, or if there is no row or
///         token.
[[nodiscard]] TokenRows rows_at(const data::TokenFile& text,
                                const std::vector<std::int64_t>& offsets, std::int64_t length,
                                const std::string& path);

}  // namespace dtrain::commands

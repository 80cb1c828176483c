// Reads what transformers computed with a model in Hugging Face's format. tests/hf/README.md
// describes the files.
#pragma once

#include "dtrain/commands/internal/fixture.h"
#include "dtrain/config/config.h"

namespace dtrain::commands {

/// The largest relative error of logits, gradients and losses.
struct HuggingFaceTolerance {
  double float32 = 1e-5;
  double float64 = 1e-10;  ///< of losses and norms, whose expected values are float64
};

/// A model with one batch and a training run, and the expected results of both.
struct HuggingFaceFixture {
  Fixture fixture;
  Trajectory trajectory;
};

/// Reads verify.hugging_face with its expected results.
///
/// Throws: Error{checkpoint} and Error{data} naming the file and the entry that is missing, has
///         another shape than the model needs, or a value outside the text or the vocabulary;
///         Error{checkpoint} naming the folder if it has no weights.
[[nodiscard]] HuggingFaceFixture read_hugging_face_fixture(const config::VerifyConfig& verify);

}  // namespace dtrain::commands

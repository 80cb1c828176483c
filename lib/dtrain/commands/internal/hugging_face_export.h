// Exports a checkpoint as a folder in Hugging Face's format.
#pragma once

#include <c10/core/ScalarType.h>

#include <string>

#include "dtrain/checkpoint/store/reader.h"
#include "dtrain/config/config.h"
#include "dtrain/model/model.h"

namespace dtrain::commands {

/// The model in a checkpoint, and the folder to write.
struct HuggingFaceExport {
  const config::ModelConfig& settings;
  const model::Model& model;
  at::ScalarType dtype = at::kFloat;
  std::int64_t max_file_bytes = 0;  ///< of a file's tensors; 0: no limit
  std::string folder;
};

/// Writes weights, config.json, generation_config.json, the family's files, the run's tokenizer and
/// the files that the run keeps of the folder it started from (store::kKeptFiles) into a new
/// folder, which appears only when complete. Holds one parameter at a time.
///
/// Throws: Error{usage} if Hugging Face has no such model; Error{checkpoint} naming the file that
///         cannot be read or written, or the parameter that is not finite in the dtype.
void export_hugging_face(checkpoint::store::Reader& reader, const HuggingFaceExport& exported);

}  // namespace dtrain::commands

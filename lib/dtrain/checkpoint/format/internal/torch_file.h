// The tensors of a file that PyTorch's torch.save has written.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "dtrain/checkpoint/format/safetensors.h"

namespace dtrain::checkpoint::format {

/// Returns whether the bytes begin as those of torch.save since PyTorch 1.6: a zip archive.
[[nodiscard]] bool is_torch_file(std::span<const std::byte> bytes);

/// The weights of a file of torch.save.
struct TorchWeights {
  std::vector<TensorView> tensors;   ///< lie in the memory of the file
  std::string key;                   ///< of the whole dictionary that they stood under, or empty
  std::vector<std::string> skipped;  ///< keys beside the tensors whose values are none
  std::vector<std::string> beside;   ///< keys beside `key` whose values are or hold tensors
};

/// Reads a state dictionary, or the one that a checkpoint's dictionary holds under `model`,
/// `state_dict`, `model_state_dict` or `module`. Nothing that the file names is executed.
///
/// path:   of the file, for messages.
/// Throws: Error{checkpoint} naming the file, what it holds instead, and what to save: a module,
///         TorchScript, no tensors, two such dictionaries; a tensor that is sparse, quantized, of
///         another dtype or beyond its storage; an archive or pickle that is truncated, damaged or ambiguous.
[[nodiscard]] TorchWeights read_torch_file(std::span<const std::byte> bytes,
                                           const std::string& path);

/// Reads all of the archive. Returns false if a part of it has no checksum.
///
/// path:   of the file, for messages.
/// Throws: Error{checkpoint} naming the file and the part that has not its checksum.
[[nodiscard]] bool verify_torch_file(std::span<const std::byte> bytes, const std::string& path);

}  // namespace dtrain::checkpoint::format

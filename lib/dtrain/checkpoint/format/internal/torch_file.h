// Reads the tensors of a file written by torch.save.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "dtrain/checkpoint/format/safetensors.h"

namespace dtrain::checkpoint::format {

/// Returns whether the bytes begin like a zip archive, the format of torch.save since PyTorch 1.6.
[[nodiscard]] bool is_torch_file(std::span<const std::byte> bytes);

/// The weights in a torch.save file.
struct TorchWeights {
  std::vector<TensorView> tensors;   ///< views of the file's memory
  std::string key;                   ///< the dictionary key that held the weights, or empty
  std::vector<std::string> skipped;  ///< keys whose values are not tensors
  std::vector<std::string> beside;   ///< keys beside `key` whose values are or hold tensors
};

/// Reads a state dictionary, or the one under `model`, `state_dict`, `model_state_dict` or `module`
/// of a checkpoint's dictionary. No code named in the file is executed.
///
/// path:   the file's path, for messages.
/// Throws: Error{checkpoint} naming the file, its content and what to save instead, for: a module,
///         TorchScript, no tensors, two such dictionaries; a tensor that is sparse, quantized, of
///         another dtype or beyond its storage; an archive or pickle that is truncated, damaged or
///         ambiguous.
[[nodiscard]] TorchWeights read_torch_file(std::span<const std::byte> bytes,
                                           const std::string& path);

/// Reads the whole archive and verifies its CRC-32 checksums. Returns false if an entry has none.
///
/// path:   the file's path, for messages.
/// Throws: Error{checkpoint} naming the file and the entry whose checksum does not match.
[[nodiscard]] bool verify_torch_file(std::span<const std::byte> bytes, const std::string& path);

}  // namespace dtrain::checkpoint::format

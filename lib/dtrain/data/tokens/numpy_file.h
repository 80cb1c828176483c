// Reads the header of a NumPy array file (.npy).
#pragma once

#include <cstdint>
#include <string_view>

#include "dtrain/base/io/input_file.h"
#include "dtrain/data/tokens/number_type.h"

namespace dtrain::data {

/// The first bytes of a .npy file.
inline constexpr std::string_view kNumpyMagic = "\x93NUMPY";

/// An array's element type and where its data begins.
struct NumpyArray {
  NumberType type;
  std::int64_t header_bytes = 0;
};

/// Reads the header of a file that begins with kNumpyMagic. start: the file's first 64 KiB,
/// or all.
///
/// Throws: Error{data} naming the file and its array if the array is truncated, not one-dimensional
///         or not of little-endian integers.
/// Source: NumPy's documentation of numpy.lib.format, versions 1 to 3.
[[nodiscard]] NumpyArray read_numpy_header(const base::InputFile& file, std::string_view start);

}  // namespace dtrain::data

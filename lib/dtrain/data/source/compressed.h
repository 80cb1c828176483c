// Decompresses streams.
#pragma once

#include <memory>
#include <string>

#include "dtrain/data/source/byte_stream.h"

namespace dtrain::data {

/// The text of gzip data, of one member after another. path: for messages.
[[nodiscard]] std::unique_ptr<ByteStream> gunzip(std::unique_ptr<ByteStream> from,
                                                 std::string path);

/// The text of zstd data, of one frame after another.
[[nodiscard]] std::unique_ptr<ByteStream> unzstd(std::unique_ptr<ByteStream> from,
                                                 std::string path);

}  // namespace dtrain::data

// Writes the vectors of texts: as lines of JSON, or as an array that numpy.load() reads.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace colossal::cli {

class EmbeddingOutput {
 public:
  virtual ~EmbeddingOutput() = default;
  /// Writes the vector of the next text. Errors ("embed"): a value that is not finite; ("file"): a failed write.
  virtual void put(const std::string& text, const float* vector, size_t size) = 0;
  /// Ends the output after the last vector. A file appears under its name only then. Errors: the same as put().
  virtual void finish() = 0;
};

/// Writes one line {"embedding": [...]} per text to `path`; "" = standard output. The text precedes the vector if
/// `with_text`. Values are the shortest decimals that read back as the same float.
std::unique_ptr<EmbeddingOutput> json_output(const std::string& path, bool with_text);

/// Writes a float32 array [texts, size] in numpy's format (NEP 1, version 1.0). The header has the number of texts, so
/// finish() refuses ("embed") any other number.
std::unique_ptr<EmbeddingOutput> npy_output(const std::string& path, int64_t texts, int64_t size);

}  // namespace colossal::cli

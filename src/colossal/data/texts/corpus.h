// The tokens to train on: one long stream in which an end token ends each document. Large files stay on disk.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "colossal/text/tokenizer.h"

namespace colossal::data {

/// A stream of tokens [0, size()). It is cheap to copy, because copies share the files.
///
/// A document consists of the tokens up to and including an end token. A text file is one document, and open() adds its
/// end token (if the tokenizer has one); a token file contains its own end tokens.
/// Thread safety: several threads may call const members.
class Corpus {
 public:
  /// Opens the data at `path`, by its ending in upper or lower case:
  ///   a folder     all its text files in sorted order, one document each; see text_files(). Files that begin like
  ///                another format (other_format()) are not read, and left_out() counts them.
  ///   a .bin file  raw little-endian tokens, with a sidecar <path>.json, {"dtype": "uint16", "end_id": 50256}
  ///                (or uint32). Without end_id the file is one document.
  ///   any other    one text file.
  /// `excluded` lists paths in a folder that are not read, nor anything under them.
  /// With the byte tokenizer the bytes of a text are its tokens. With any other tokenizer the text is encoded now and
  /// kept in memory, 4 bytes per token. Files that are not encoded are read now if they have at most 1 MiB. Larger ones
  /// are read by read(). Editing a small file later has no effect; shortening a large one is an error.
  /// Errors: throws Error("data", ...) if the path does not exist, is unreadable or empty, or if a file does not hold
  ///         whole tokens. The same for ids outside the vocabulary among the first million tokens; later ones throw in
  ///         read(). The same for a single file that begins like another format (require_text()) or is JSON
  ///         (require_no_json()), for a folder without text files, and for a file above 16 GiB that must be encoded.
  static Corpus open(const std::string& path, const text::Tokenizer& tokenizer,
                     const std::vector<std::string>& excluded = {});
  /// Opens the texts of a file that write_text_archive() wrote, as open() opens the folder that was archived: the same
  /// documents and contents(). The texts are kept in memory. Errors: the same as read_text_archive(), and those of
  /// open() for text.
  static Corpus open_archive(const std::string& path, const text::Tokenizer& tokenizer);
  /// Returns a corpus of tokens in memory.
  static Corpus of(std::vector<uint32_t> tokens, int64_t end_id, int64_t vocabulary_size);

  int64_t size() const { return size_; }
  int64_t end_id() const { return end_id_; }
  int64_t vocabulary_size() const { return vocabulary_size_; }
  /// Returns a line for the log about the files of the folder that are not read. A corpus of split() has none.
  const std::optional<std::string>& left_out() const { return left_out_; }
  /// Copies tokens [begin, begin + count) to `out`.
  /// Errors: the range is outside the stream; an id is outside the vocabulary (with file and offset); a file became
  /// shorter after it was opened.
  void read(int64_t begin, int64_t count, int64_t* out) const;
  /// Splits the corpus into a training and a held-out part. The split depends only on the documents and their sizes.
  /// 0 <= fraction < 1; 0 = an empty held-out part.
  ///
  /// The held-out part has at most `fraction` of the tokens, and at least nine tenths of that. A document larger than
  /// that limit contributes `fraction` of its tokens, from its end. Other documents are held out whole, at regular
  /// intervals. If the result is too small, the largest document contributes the missing tokens from its end. Where a
  /// text is cut, an end token replaces the last token before the cut.
  std::pair<Corpus, Corpus> split(double fraction) const;
  /// Returns a description of each document by name: size, checksum, and token range if it was split. A data position
  /// in a checkpoint is valid only for these contents. More than 1000 documents give only their number and one
  /// checksum.
  std::map<std::string, std::string> contents() const;
  /// Returns the members of Samples::traits() that a corpus has.
  nlohmann::json traits() const;

 private:
  struct Run;  // a range of consecutive tokens of one document
  Corpus(int64_t end_id, int64_t vocabulary_size) : end_id_(end_id), vocabulary_size_(vocabulary_size) {}
  static Corpus open_tokens(const std::string& path, int64_t vocabulary_size);
  void add_text(const std::string& path, const std::string& name, const text::Tokenizer& tokenizer);
  /// Adds a text that is in memory. `path`: the name of the text in messages.
  void add_text(const std::string& path, const std::string& name, std::string text, const text::Tokenizer& tokenizer);
  /// Checks that there are tokens, and the ids of the first ones.
  void check(const std::string& path) const;
  void add(Run run);

  std::vector<std::shared_ptr<const Run>> runs_;
  std::vector<int64_t> starts_;  // for each run, its first token in the stream
  std::optional<std::string> left_out_;
  int64_t size_ = 0;
  int64_t end_id_;
  int64_t vocabulary_size_;
};

/// Writes a token file and its sidecar, in the smallest dtype that holds the vocabulary.
void write_token_file(const std::string& path, const std::vector<uint32_t>& tokens, int64_t vocabulary_size,
                      int64_t end_id);

}  // namespace colossal::data

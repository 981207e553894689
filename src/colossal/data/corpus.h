// The tokens to train on: one long stream in which the end token closes each document. Large files stay on disk.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "colossal/text/tokenizer.h"

namespace colossal::data {

/// A stream of tokens [0, size()). Cheap to copy: copies share the files.
///
/// A document is what lies between end tokens; its end token belongs to it. Text files are one document each, their end
/// token is added here; token files contain their own.
/// Thread safety: const members may be called from several threads.
class Corpus {
 public:
  /// `path`, of which the ending counts in either case, is
  ///   a folder     all its text files in sorted order, a document each: see text_files(); those that begin as another
  ///                format does (other_format()) are not read, and left_out() counts them;
  ///   a .bin file  raw little-endian tokens beside a sidecar <path>.json, {"dtype": "uint16", "end_id": 50256}
  ///                (or uint32; without end_id the file is one document);
  ///   any other    one text file.
  /// With the byte tokenizer text is its tokens, else it is encoded now and kept in memory as 4 bytes a token. Of what
  /// is not encoded, files of at most 1 MiB are read now and larger ones when asked for: editing the former does no
  /// harm, shortening the latter is an error.
  /// Errors: throws Error("data", ...): no such path, unreadable, empty, a file that is not whole tokens, ids outside
  ///         the vocabulary among the first million (later ones throw in read()), a file alone that begins as another
  ///         format does (require_text()) or is JSON (require_no_json()), a folder of no other files.
  static Corpus open(const std::string& path, const text::Tokenizer& tokenizer,
                     const std::vector<std::string>& excluded = {});
  /// Tokens held in memory.
  static Corpus of(std::vector<uint32_t> tokens, int64_t end_id, int64_t vocabulary_size);

  int64_t size() const { return size_; }
  int64_t end_id() const { return end_id_; }
  int64_t vocabulary_size() const { return vocabulary_size_; }
  /// A line for the log about files of the folder that are not read; none of a corpus that split() returns.
  const std::optional<std::string>& left_out() const { return left_out_; }
  /// Copies tokens [begin, begin + count) to `out`.
  /// Errors: outside the stream; an id outside the vocabulary (names file and offset); a file that became shorter
  /// meanwhile.
  void read(int64_t begin, int64_t count, int64_t* out) const;
  /// Training and held-out parts, by documents and their sizes alone. The held-out part has at most `fraction` of the
  /// tokens and at least nine tenths of that. A document larger than the whole of it gives its end; of the others every
  /// so many is held out whole; where they come out short, the largest one gives its end too. Where a text is cut, an
  /// end token takes the place of its last token before the cut. 0 <= fraction < 1; 0 leaves the second empty.
  std::pair<Corpus, Corpus> split(double fraction) const;
  /// What each document was made of, in words, by name: what a data position in a checkpoint refers to. Of more than
  /// 1000 only their number and a checksum.
  std::map<std::string, std::string> contents() const;

 private:
  struct Run;  // consecutive tokens of one document
  Corpus(int64_t end_id, int64_t vocabulary_size) : end_id_(end_id), vocabulary_size_(vocabulary_size) {}
  static Corpus open_tokens(const std::string& path, int64_t vocabulary_size);
  void add_text(const std::string& path, const std::string& name, const text::Tokenizer& tokenizer);
  void add(Run run);

  std::vector<std::shared_ptr<const Run>> runs_;
  std::vector<int64_t> starts_;  // of each run in the stream
  std::optional<std::string> left_out_;
  int64_t size_ = 0;
  int64_t end_id_;
  int64_t vocabulary_size_;
};

/// Writes a token file and its sidecar, in the smallest dtype that holds the vocabulary.
void write_token_file(const std::string& path, const std::vector<uint32_t>& tokens, int64_t vocabulary_size,
                      int64_t end_id);

}  // namespace colossal::data

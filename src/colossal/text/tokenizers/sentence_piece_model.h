// The contents of a SentencePiece .model file, and the segmentation of normalized text into its pieces.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "colossal/text/tokenizers/vocabulary.h"

namespace colossal::text {

/// The message ModelProto of https://github.com/google/sentencepiece/blob/master/src/sentencepiece_model.proto, without
/// the fields that only training reads.
struct SentencePieceFile {
  enum class Kind { Unigram = 1, Bpe = 2, Word = 3, Char = 4 };
  enum class Type { Normal = 1, Unknown = 2, Control = 3, UserDefined = 4, Unused = 5, Byte = 6 };
  struct Piece {
    std::string text;
    float score = 0;
    Type type = Type::Normal;
  };
  std::vector<Piece> pieces;
  Kind kind = Kind::Unigram;
  bool byte_fallback = false, spaces_behind = false;  ///< spaces_behind is treat_whitespace_as_suffix
  std::string unknown_surface = " \xE2\x81\x87 ";     ///< text of an unknown piece
  std::string begin = "<s>", end = "</s>";
  std::string charsmap;
  bool add_dummy_prefix = true, remove_extra_whitespaces = true, escape_whitespaces = true;

  /// Parses a file.
  /// Errors: throws Error("tokenizer", ...) on damage, an empty or duplicate piece, zero or two unknown pieces, byte
  /// fallback without all 256 bytes, and features that are not supported (a denormalizer).
  static SentencePieceFile parse(std::string_view bytes);
};

/// The segmentation of text into the pieces of a file.
/// Thread safety: const members may be called from several threads.
class SentencePieceModel {
 public:
  /// `file` must outlive the model.
  explicit SentencePieceModel(const SentencePieceFile& file);
  struct Part {
    std::string_view text;
    int32_t id;
  };
  /// Splits `text` into parts, each with the id of its piece or the unknown id.
  /// Cost: unigram O(n m) for n bytes and pieces of at most m bytes; BPE O(n log n).
  std::vector<Part> cut(std::string_view text) const;
  /// Returns the size in bytes of the longest user-defined symbol at the front; 0 = none.
  size_t user_defined(std::string_view text) const;
  int32_t id_of(std::string_view piece) const;  ///< returns the unknown id if there is no such piece
  int32_t unknown_id() const { return unknown_; }

 private:
  using Type = SentencePieceFile::Type;
  std::vector<Part> cut_unigram(std::string_view text) const;
  std::vector<Part> cut_bpe(std::string_view text) const;
  std::vector<Part> cut_characters(std::string_view text) const;
  std::vector<Part> cut_words(std::string_view text) const;
  Type type_of(int32_t id) const { return file_.pieces[id].type; }
  const SentencePieceFile& file_;
  StringIds pieces_, reserved_;  // pieces that text is made of; all other pieces
  PieceTrie trie_, user_defined_;
  int32_t unknown_ = -1;
  float min_score_, max_score_;
};

/// Returns the size in bytes of the first character, derived from the upper half of its first byte; at most
/// text.size().
size_t character_length(std::string_view text);

}  // namespace colossal::text

// What a SentencePiece .model file says, and the pieces that it cuts normalized text in.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "colossal/text/piece_trie.h"
#include "colossal/text/vocabulary.h"

namespace colossal::text {

/// The message ModelProto of https://github.com/google/sentencepiece/blob/master/src/sentencepiece_model.proto, without
/// what only training reads.
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
  bool byte_fallback = false, spaces_behind = false;  ///< treat_whitespace_as_suffix
  std::string unknown_surface = " \xE2\x81\x87 ";     ///< what an unknown piece decodes to
  std::string begin = "<s>", end = "</s>";
  std::string charsmap;
  bool add_dummy_prefix = true, remove_extra_whitespaces = true, escape_whitespaces = true;

  /// Errors: throws Error("tokenizer", ...) on damage, a piece that is empty or there twice, none or two that are
  /// unknown, byte fallback without all bytes, and what is not understood (a denormalizer).
  static SentencePieceFile parse(std::string_view bytes);
};

/// The segmentation of a file's pieces.
/// Thread safety: const members may be called from several threads.
class SentencePieceModel {
 public:
  /// `file` must outlive it.
  explicit SentencePieceModel(const SentencePieceFile& file);
  struct Part {
    std::string_view text;
    int32_t id;
  };
  /// `text` in parts, each with the id of its piece or the unknown one. Cost: unigram O(n m) for n bytes and pieces of
  /// at most m; BPE O(n log n).
  std::vector<Part> cut(std::string_view text) const;
  /// Bytes of the longest user-defined symbol at the front; 0: none.
  size_t user_defined(std::string_view text) const;
  int32_t id_of(std::string_view piece) const;  ///< the unknown one where there is none
  int32_t unknown_id() const { return unknown_; }

 private:
  using Type = SentencePieceFile::Type;
  std::vector<Part> cut_unigram(std::string_view text) const;
  std::vector<Part> cut_bpe(std::string_view text) const;
  std::vector<Part> cut_characters(std::string_view text) const;
  std::vector<Part> cut_words(std::string_view text) const;
  Type type_of(int32_t id) const { return file_.pieces[id].type; }
  const SentencePieceFile& file_;
  StringIds pieces_, reserved_;  // pieces that text is made of, and the others
  PieceTrie trie_, user_defined_;
  int32_t unknown_ = -1;
  float least_score_, most_score_;
};

/// Bytes of the character that starts with this byte, by its first half alone; at most those of `text`.
size_t character_length(std::string_view text);

}  // namespace colossal::text

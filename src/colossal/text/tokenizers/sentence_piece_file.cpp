#include <cmath>
#include <cstdio>
#include <set>

#include "colossal/base/error.h"
#include "colossal/base/json_file.h"
#include "colossal/formats/protobuf.h"
#include "colossal/text/tokenizers/sentence_piece_model.h"

namespace colossal::text {
namespace {

using File = SentencePieceFile;

File::Piece parse_piece(std::string_view message) {
  File::Piece piece;
  for (formats::ProtobufReader field(message); field.next();) {
    if (field.number() == 1) piece.text = field.bytes();
    if (field.number() == 2) piece.score = field.real();
    if (field.number() == 3) {
      require(field.integer() >= 1 && field.integer() <= 6, "tokenizer", "the type of a piece must be in [1, 6]: got ",
              field.integer());
      piece.type = static_cast<File::Type>(field.integer());
    }
  }
  require(!piece.text.empty(), "tokenizer", "a piece must not be empty");
  require(std::isfinite(piece.score), "tokenizer", "the score of ", printable(piece.text), " must be finite");
  return piece;
}

void parse_trainer(std::string_view message, File& file) {
  for (formats::ProtobufReader field(message); field.next();) {
    switch (field.number()) {
      case 3:
        require(field.integer() >= 1 && field.integer() <= 4, "tokenizer",
                "model_type must be 1 (unigram), 2 (BPE), 3 (word) or 4 (char): got ", field.integer());
        file.kind = static_cast<File::Kind>(field.integer());
        break;
      case 24:
        file.spaces_behind = field.boolean();
        break;
      case 35:
        file.byte_fallback = field.boolean();
        break;
      case 44:
        file.unknown_surface = field.bytes();
        break;
      case 46:
        file.begin = field.bytes();
        break;
      case 47:
        file.end = field.bytes();
        break;
      default:
        break;
    }
  }
}

void parse_normalizer(std::string_view message, File& file) {
  for (formats::ProtobufReader field(message); field.next();) {
    if (field.number() == 2) file.charsmap = field.bytes();
    if (field.number() == 3) file.add_dummy_prefix = field.boolean();
    if (field.number() == 4) file.remove_extra_whitespaces = field.boolean();
    if (field.number() == 5) file.escape_whitespaces = field.boolean();
  }
}

void check(const File& file) {
  std::set<std::string_view> seen, bytes;
  int unknown = 0;
  for (const File::Piece& piece : file.pieces) {
    require(seen.insert(piece.text).second, "tokenizer", "the piece ", printable(piece.text), " occurs twice");
    unknown += piece.type == File::Type::Unknown;
    if (piece.type == File::Type::Byte) bytes.insert(piece.text);
  }
  require(unknown == 1, "tokenizer", "one piece must be the unknown one: got ", unknown);
  require(bytes.empty() || file.byte_fallback, "tokenizer", "pieces are bytes, but byte_fallback is off");
  if (!file.byte_fallback) return;
  for (int byte = 0; byte < 256; ++byte) {
    char name[8];
    std::snprintf(name, sizeof name, "<0x%02X>", byte);
    require(bytes.count(name), "tokenizer", "byte_fallback is on, but no piece is ", name);
  }
  require(bytes.size() == 256, "tokenizer", "256 pieces must be bytes: got ", bytes.size());
}

}  // namespace

SentencePieceFile SentencePieceFile::parse(std::string_view bytes) {
  File file;
  for (formats::ProtobufReader field(bytes); field.next();) {
    if (field.number() == 1) file.pieces.push_back(parse_piece(field.bytes()));
    if (field.number() == 2) parse_trainer(field.bytes(), file);
    if (field.number() == 3) parse_normalizer(field.bytes(), file);
    if (field.number() == 5)
      for (formats::ProtobufReader part(field.bytes()); part.next();)
        require(part.number() != 2 || part.bytes().empty(), "tokenizer", "a denormalizer is not supported");
  }
  require(file.pieces.size() < static_cast<size_t>(Vocabulary::kMaxId), "tokenizer",
          "too many pieces: ", file.pieces.size());
  check(file);
  return file;
}

}  // namespace colossal::text

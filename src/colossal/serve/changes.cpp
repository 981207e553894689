#include "colossal/serve/changes.h"

#include <utility>

#include "colossal/serve/byte_stream.h"
#include "colossal/serve/field_bytes.h"

namespace colossal::serve {
namespace {

void pass_options(ByteReader& bytes, infer::GenerationOptions& options) {
  FieldBytes<ByteReader> fields(bytes);
  options.fields(fields);
}

void pass_options(ByteWriter& bytes, infer::GenerationOptions options) {
  FieldBytes<ByteWriter> fields(bytes);
  options.fields(fields);
}

/// Writes or reads all members, so that both have the same order.
template <class Bytes, class Values>
void pass_changes(Bytes& bytes, Values& changes) {
  bytes(changes.ends);
  bytes(changes.cancelled);
  bytes(changes.schemas);
  bytes.each(changes.generations, [&bytes](auto& added) {
    bytes(added.ticket), bytes(added.after);
    auto& generation = added.generation;
    bytes(generation.prompt);
    pass_options(bytes, generation.options);
    bytes(generation.ignores_end), bytes(generation.client), bytes(generation.cache_key);
    bytes(generation.scored_from), bytes(generation.adapter);
  });
  bytes.each(changes.embeddings, [&bytes](auto& added) {
    bytes(added.ticket), bytes(added.embedding.texts), bytes(added.embedding.client);
  });
}

}  // namespace

std::string to_bytes(const Changes& changes) {
  if (changes.is_empty()) return "";
  ByteWriter bytes;
  pass_changes(bytes, changes);
  return bytes.take();
}

Changes changes_of(const std::string& bytes) {
  Changes changes;
  if (bytes.empty()) return changes;
  ByteReader reader(bytes, "changes");
  pass_changes(reader, changes);
  reader.check_end();
  return changes;
}

}  // namespace colossal::serve

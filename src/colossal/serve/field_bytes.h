// The options of a request as bytes, for messages between ranks of one program.
//
//   FieldBytes<ByteWriter> fields(writer);
//   options.fields(fields);                       // a ByteReader reads them back in the same way
#pragma once
#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "colossal/base/fields.h"
#include "colossal/serve/byte_stream.h"

namespace colossal::serve {

/// Passes the value of each field to a ByteWriter or ByteReader, which must outlive it.
template <class Bytes>
class FieldBytes final : public Fields {
 public:
  explicit FieldBytes(Bytes& bytes) : bytes_(bytes) {}

 private:
  void visit(const Field& field) override {
    std::visit([this](auto* value) { bytes_(*value); }, field.value);
  }
  void visit_rest(ConfigDocument&) override {}
  void enter(const char*, const char*, const char*) override {}
  void leave() override {}
  Bytes& bytes_;
};

/// Passes texts by their names, such as diffusion::GivenFiles.
inline void pass_texts(ByteWriter& bytes, const std::map<std::string, std::string>& texts) {
  std::vector<std::string> list;
  for (const auto& [name, text] : texts) list.insert(list.end(), {name, text});
  bytes(list);
}
inline void pass_texts(ByteReader& bytes, std::map<std::string, std::string>& texts) {
  std::vector<std::string> list;
  bytes(list);
  for (size_t i = 0; i + 1 < list.size(); i += 2) texts[list[i]] = std::move(list[i + 1]);
}

}  // namespace colossal::serve

// The options of a request as bytes, for messages between ranks of one program.
//
//   FieldBytes<ByteWriter> fields(writer);
//   options.fields(fields);                       // a ByteReader reads them back in the same way
#pragma once
#include <variant>

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

}  // namespace colossal::serve

#include "colossal/report/tensorboard.h"

#include <unistd.h>

#include <array>
#include <chrono>

#include "colossal/base/error.h"

namespace colossal::report {
namespace {

constexpr std::array<uint32_t, 256> make_crc_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) ? 0x82F63B78u : 0u);
    table[byte] = crc;
  }
  return table;
}
constexpr auto kCrcTable = make_crc_table();

// Encodes protocol buffers. A field is a key (number << 3 | wire type) and a value. The wire types used here are 0
// varint, 1 eight bytes, 2 length and bytes, 5 four bytes. The format is little endian, as are all supported machines.
void put_varint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  out += static_cast<char>(value);
}

void put_key(std::string& out, int field, int wire_type) {
  put_varint(out, static_cast<uint64_t>(field << 3 | wire_type));
}

template <class Fixed>
void put_fixed(std::string& out, int field, Fixed value) {
  put_key(out, field, sizeof(value) == 8 ? 1 : 5);
  out.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

void put_bytes(std::string& out, int field, std::string_view bytes) {
  put_key(out, field, 2);
  put_varint(out, bytes.size());
  out += bytes;
}

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

/// Event { double wall_time = 1; int64 step = 2; string file_version = 3; Summary summary = 5; SessionLog session_log =
/// 7; }
std::string event(int64_t step) {
  std::string out;
  put_fixed(out, 1, wall_seconds());
  put_key(out, 2, 0);
  put_varint(out, static_cast<uint64_t>(step));
  return out;
}

std::string new_path(const std::string& folder) {
  char host[256] = "host";
  ::gethostname(host, sizeof(host) - 1);
  return concat(folder, "/events.out.tfevents.", static_cast<int64_t>(wall_seconds()), ".", host, ".", ::getpid());
}

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  uint32_t crc = ~0u;
  for (const char c : bytes) crc = (crc >> 8) ^ kCrcTable[(crc ^ static_cast<unsigned char>(c)) & 0xFF];
  return ~crc;
}

uint32_t masked_crc32c(std::string_view bytes) {
  const uint32_t crc = crc32c(bytes);
  return ((crc >> 15) | (crc << 17)) + 0xA282EAD8u;
}

EventWriter::EventWriter(const std::string& folder, std::optional<int64_t> resumed_after)
    : file_(new_path(folder), "tensorboard", /*anew=*/false) {
  std::string version = event(0);
  put_bytes(version, 3, "brain.Event:2");
  record(version);
  // SessionLog { status = 1: START = 1 } makes TensorBoard drop its data of this step and of later ones.
  std::string start;
  put_key(start, 1, 0);
  put_varint(start, 1);
  std::string restart = event(resumed_after ? *resumed_after + 1 : 0);
  put_bytes(restart, 7, start);
  record(restart);
  flush();
}

void EventWriter::scalar(std::string_view tag, int64_t step, double value) {
  std::string entry;  // Summary.Value { string tag = 1; float simple_value = 2; }
  put_bytes(entry, 1, tag);
  put_fixed(entry, 2, static_cast<float>(value));
  std::string summary;  // Summary { repeated Value value = 1; }
  put_bytes(summary, 1, entry);
  std::string whole = event(step);
  put_bytes(whole, 5, summary);
  record(whole);
}

void EventWriter::write(const StepMetrics& metrics) {
  for (const Metric& row : metrics.rows()) {
    if (row.tag == "-") continue;
    const std::string tag = row.tag.empty() ? "train/" + row.name : row.tag;
    const bool in_gigabytes = row.unit == "bytes" && tag.ends_with("_gigabytes");
    scalar(tag, metrics.step(), in_gigabytes ? number_of(row) / 1e9 : number_of(row));
  }
  flush();
}

void EventWriter::record(const std::string& event) {
  // length (8 bytes), masked CRC of the length, the event, masked CRC of the event
  const uint64_t length = event.size();
  std::string out(reinterpret_cast<const char*>(&length), sizeof(length));
  const uint32_t length_crc = masked_crc32c(out), event_crc = masked_crc32c(event);
  out.append(reinterpret_cast<const char*>(&length_crc), sizeof(length_crc));
  out += event;
  out.append(reinterpret_cast<const char*>(&event_crc), sizeof(event_crc));
  file_.add(out);
}

}  // namespace colossal::report

#include "colossal/train/generator_states.h"

#include <ATen/ATen.h>

#include <mutex>

#include "colossal/base/error.h"
#include "colossal/base/foreign_error.h"
#include "colossal/base/json.h"
#include "colossal/base/json_file.h"
#include "colossal/comm/agreement.h"

namespace colossal::train {
namespace {

using nlohmann::json;

std::string hex_from_bytes(const at::Tensor& bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  const auto* byte = bytes.const_data_ptr<uint8_t>();
  for (int64_t i = 0; i < bytes.numel(); ++i) {
    text += kDigits[byte[i] >> 4];
    text += kDigits[byte[i] & 15];
  }
  return text;
}

/// Returns the bytes; undefined = the text is not hex.
at::Tensor bytes_from_hex(const std::string& hex) {
  at::Tensor bytes = at::empty({static_cast<int64_t>(hex.size() / 2)}, at::kByte);
  auto* byte = bytes.mutable_data_ptr<uint8_t>();
  if (hex.size() % 2 != 0 || hex.find_first_not_of("0123456789abcdef") != std::string::npos) return {};
  const auto value = [](char digit) { return digit <= '9' ? digit - '0' : digit - 'a' + 10; };
  for (size_t i = 0; i < hex.size() / 2; ++i)
    byte[i] = static_cast<uint8_t>(value(hex[2 * i]) << 4 | value(hex[2 * i + 1]));
  return bytes;
}

/// Returns the devices whose generators operators of a module on `device` draw from.
std::vector<at::Device> devices_with(at::Device device) {
  if (device.is_cuda()) return {at::kCPU, device};
  return {at::kCPU};
}

}  // namespace

json gathered_generators(comm::Group& ranks, at::Device device) {
  json own = json::object();
  for (const at::Device from : devices_with(device)) {
    at::Generator generator = at::globalContext().defaultGenerator(from);
    const std::lock_guard lock(generator.mutex());
    own[c10::DeviceTypeName(from.type(), /*lower_case=*/true)] = hex_from_bytes(generator.get_state());
  }
  json all = json::array();
  for (const std::string& text : comm::gather_text(ranks, at::kCPU, 0, own.dump()))
    all.push_back(parse_json(text, "the generators of a rank", "checkpoint"));
  return all;
}

void restore_generators(const json& all, const comm::Group& ranks, at::Device device) {
  if (all.is_null()) return;
  require(all.is_array(), "checkpoint", "its generators must be a list with an element for each rank: got a ",
          all.type_name());
  if (all.size() != static_cast<size_t>(ranks.size())) return;
  const json& own = all[static_cast<size_t>(ranks.rank())];
  for (const at::Device to : devices_with(device)) {
    const std::string name = c10::DeviceTypeName(to.type(), /*lower_case=*/true);
    if (!own.contains(name)) continue;
    const at::Tensor state = own[name].is_string() ? bytes_from_hex(own[name]) : at::Tensor();
    require(state.defined(), "checkpoint", "the state of a generator must be hex digits: got another value for ", name);
    at::Generator generator = at::globalContext().defaultGenerator(to);
    const std::lock_guard lock(generator.mutex());
    try {
      generator.set_state(state);
    } catch (const std::exception& error) {
      throw Error("checkpoint",
                  concat("LibTorch refuses the state of generator ", name, ": ", as_error(error).message()));
    }
  }
}

}  // namespace colossal::train

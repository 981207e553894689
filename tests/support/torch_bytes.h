// Files of torch.save and numpy.savez, made of their bytes: pieces of pickles, arrays and zip files.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace colossal::test {

/// Returns the lowest `count` bytes of a number, the lowest first.
inline std::string little(uint64_t value, int count) {
  std::string bytes;
  for (int i = 0; i < count; ++i) bytes += i < 8 ? static_cast<char>(value >> (8 * i)) : '\0';
  return bytes;
}

template <class T>
std::string raw(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

// Pieces of a pickle, each of which pushes a value.

inline std::string text_piece(const std::string& text) { return "X" + little(text.size(), 4) + text; }
inline std::string number_piece(int64_t value) { return "\x8a\x08" + little(static_cast<uint64_t>(value), 8); }
inline std::string function_piece(const std::string& module, const std::string& name) {
  return "c" + module + "\n" + name + "\n";
}
inline std::string tuple_piece(const std::vector<std::string>& items) {
  std::string all = "(";
  for (const std::string& item : items) all += item;
  return all + "t";
}
inline std::string numbers_piece(const std::vector<int64_t>& values) {
  std::vector<std::string> items;
  for (const int64_t value : values) items.push_back(number_piece(value));
  return tuple_piece(items);
}
inline std::string call_piece(const std::string& function, const std::vector<std::string>& arguments) {
  return function + tuple_piece(arguments) + "R";
}
using NamedPieces = std::vector<std::pair<std::string, std::string>>;
inline std::string dict_items(const NamedPieces& items) {
  std::string all = "(";
  for (const auto& [name, item] : items) all += text_piece(name) + item;
  return all + "u";
}
inline std::string dict_piece(const NamedPieces& items) { return "}" + dict_items(items); }
inline std::string ordered_piece(const NamedPieces& items) {
  return call_piece(function_piece("collections", "OrderedDict"), {}) + dict_items(items);
}
/// A storage of "FloatStorage" or the like. `rest`: further values of its tuple.
inline std::string storage_piece(const std::string& type, const std::string& key, int64_t count,
                                 const std::string& rest = "") {
  return tuple_piece({text_piece("storage"), function_piece("torch", type), text_piece(key), text_piece("cpu"),
                      number_piece(count), rest}) +
         "Q";
}
inline std::string tensor_piece(const std::string& storage, int64_t first, const std::vector<int64_t>& sizes,
                                const std::vector<int64_t>& strides) {
  return call_piece(
      function_piece("torch._utils", "_rebuild_tensor_v2"),
      {storage, number_piece(first), numbers_piece(sizes), numbers_piece(strides), "\x89", ordered_piece({})});
}
inline std::string pickle_of(const std::string& piece) { return "\x80\x02" + piece + "."; }

// Zip files.

struct ZipPart {
  std::string name, bytes;
  bool deflated = false;  ///< as deflate's blocks that are not compressed
};

inline uint32_t zip_checksum(const std::string& bytes) {
  uint32_t crc = ~0u;
  for (const char byte : bytes) {
    crc ^= static_cast<unsigned char>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (0xedb88320u & (0u - (crc & 1)));
  }
  return ~crc;
}

inline std::string zip_of(const std::vector<ZipPart>& parts) {
  std::string file, directory;
  for (const ZipPart& part : parts) {
    std::string content = part.bytes;
    if (part.deflated)
      content = "\x01" + little(content.size(), 2) + little(~content.size(), 2) + content;  // one last block
    const std::string about = little(20, 2) + little(0, 2) + little(part.deflated ? 8 : 0, 2) + little(0, 4) +
                              little(zip_checksum(part.bytes), 4) + little(content.size(), 4) +
                              little(part.bytes.size(), 4) + little(part.name.size(), 2) + little(0, 2);
    directory += "PK\x01\x02" + little(20, 2) + about + little(0, 10) + little(file.size(), 4) + part.name;
    file += "PK\x03\x04" + about + part.name + content;
  }
  const std::string counts = little(0, 4) + little(parts.size(), 2) + little(parts.size(), 2);
  return file + directory + "PK\x05\x06" + counts + little(directory.size(), 4) + little(file.size(), 4) + little(0, 2);
}

// Whole files. `storages`: the bytes of each storage under its key.

inline std::string torch_zip(const std::string& piece, const std::vector<std::pair<std::string, std::string>>& storages,
                             const std::string& order = "little") {
  std::vector<ZipPart> parts{{"x/data.pkl", pickle_of(piece)}, {"x/byteorder", order}};
  for (const auto& [key, bytes] : storages) parts.push_back({"x/data/" + key, bytes});
  return zip_of(parts);
}

/// The form before PyTorch 1.6. `element_bytes`: of all storages.
inline std::string torch_old(const std::string& piece, const std::vector<std::pair<std::string, std::string>>& storages,
                             int element_bytes) {
  std::string keys = "](";
  for (const auto& [key, bytes] : storages) keys += text_piece(key);
  std::string file = pickle_of("\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19") + pickle_of(number_piece(1001)) +
                     pickle_of(dict_piece({{"little_endian", "\x88"}})) + pickle_of(piece) + pickle_of(keys + "e");
  for (const auto& [key, bytes] : storages)
    file += little(bytes.size() / static_cast<size_t>(element_bytes), 8) + bytes;
  return file;
}

/// An array of NumPy. `shape`: as Python writes it, "(2, 3)".
inline std::string npy_of(const std::string& type, const std::string& shape, const std::string& bytes,
                          bool fortran = false) {
  const std::string text =
      "{'descr': '" + type + "', 'fortran_order': " + (fortran ? "True" : "False") + ", 'shape': " + shape + ", }\n";
  return std::string("\x93NUMPY\x01", 7) + std::string(1, '\0') + little(text.size(), 2) + text + bytes;
}

}  // namespace colossal::test

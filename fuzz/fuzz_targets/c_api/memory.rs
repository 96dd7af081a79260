//! Memory that is handed to the library: each piece as large as is promised, and no byte more, so that AddressSanitizer sees
//! whoever reads on.

/// Pieces of memory that live as long as this.
#[derive(Default)]
pub struct Memory(Vec<Box<[u8]>>);

/// Above this the library takes the size of a struct for garbage, and does not look at what lies there.
const LARGEST: usize = 4096;

impl Memory {
    /// Keeps some bytes, and says where they are. None are nowhere, which is not NULL.
    pub fn bytes(&mut self, bytes: Vec<u8>) -> *const u8 {
        self.0.push(bytes.into_boxed_slice());
        self.0.last().map_or(std::ptr::null(), |bytes| bytes.as_ptr())
    }

    /// With a NUL behind it, and none in it.
    pub fn text(&mut self, text: &[u8]) -> *const u8 {
        let mut bytes: Vec<u8> = text.iter().copied().filter(|&byte| byte != 0).collect();
        bytes.push(0);
        self.bytes(bytes)
    }

    /// A struct with these fields behind its size, cut or filled with zeros to be as long as it says. `odd`: at an address that
    /// no compiler would choose.
    pub fn struct_of(&mut self, fields: &[u8], size: usize, odd: bool) -> *const u8 {
        let len = if size > LARGEST { size_of::<usize>() } else { size.max(size_of::<usize>()) };
        let mut bytes = vec![0; usize::from(odd)];
        bytes.extend_from_slice(&size.to_ne_bytes());
        bytes.extend_from_slice(fields);
        bytes.resize(len + usize::from(odd), 0);
        self.bytes(bytes).wrapping_add(usize::from(odd))
    }

    /// An array of `count` elements, made of these in turn, each cut or filled with zeros to `stride` bytes.
    pub fn array(&mut self, elements: &[Vec<u8>], count: usize, stride: usize) -> *const u8 {
        let mut bytes = Vec::with_capacity(count * stride);
        for element in elements.iter().cycle().take(count) {
            let end = bytes.len() + stride;
            bytes.extend_from_slice(&element[..element.len().min(stride)]);
            bytes.resize(end, 0);
        }
        self.bytes(bytes)
    }
}

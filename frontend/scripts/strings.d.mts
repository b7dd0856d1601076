/** Every text of the console that a user can read, with its file (under `src`) and line. `{…}` stands for what is filled in. */
export function strings(): { file: string; line: number; text: string }[];
